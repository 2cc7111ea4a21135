"""Where to run: environments locked, fetched once, and turned into images or venvs."""
