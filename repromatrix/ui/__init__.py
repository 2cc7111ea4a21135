"""The terminal: progress, tables, the host check."""
