"""Text to tokens and logits to tokens."""
