"""Running attempts: docker and venv behind one contract, and the scheduler that feeds them."""
