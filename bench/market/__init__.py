"""Markets under work and loss."""
