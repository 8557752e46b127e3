"""Commands that prepare and register models."""
