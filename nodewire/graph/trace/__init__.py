"""A PyTorch module traced into a program."""
