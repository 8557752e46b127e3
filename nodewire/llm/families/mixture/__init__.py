"""Families whose layers hold experts."""
