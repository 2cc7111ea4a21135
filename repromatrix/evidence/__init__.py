"""What an attempt means: outcome and signature, pure functions over what it left behind."""
