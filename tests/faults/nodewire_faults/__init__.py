"""Dishonest providers for nodewire's benches and tests; see README.md beside this package."""

CHEATS = ("wrong", "scaled", "skipped", "other", "stale", "copied", "equivocating", "uncommitted", "nan", "short")
