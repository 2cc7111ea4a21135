"""What to run: matrix.toml and repros, parsed, validated and expanded into cells."""
