"""Epochs: what an oracle takes in, derives and certifies."""
