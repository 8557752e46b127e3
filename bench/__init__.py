"""Measurements: `python -m bench.NAME [--json] [--quick] [--seed N]` prints one JSON document."""
