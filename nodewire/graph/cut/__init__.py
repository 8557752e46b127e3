"""A program cut into tasks."""
