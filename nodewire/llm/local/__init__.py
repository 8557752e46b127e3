"""A whole model in this process."""
