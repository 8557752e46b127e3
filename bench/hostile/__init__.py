"""A market under floods."""
