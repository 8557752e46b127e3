"""Matrices in blocks of whole numbers: how they are made, kept, read and multiplied with."""
