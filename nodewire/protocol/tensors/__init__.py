"""Tensors as frames, and their sketches."""
