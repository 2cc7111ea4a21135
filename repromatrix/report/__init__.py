"""What is shown: Markdown, JSON and terminal tables, pure functions over stored results."""
