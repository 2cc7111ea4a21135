"""Ratios measured side by side in one run; `python -m benchmarks` writes them to docs/performance.md. Not tests."""
