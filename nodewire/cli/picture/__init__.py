"""A manifest as a picture."""
