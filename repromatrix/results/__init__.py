"""What is kept: results in SQLite, evidence in a folder per attempt, keyed by everything that decides them."""
