"""Commands that buy training."""
