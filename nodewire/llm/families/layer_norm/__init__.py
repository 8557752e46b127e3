"""Families with LayerNorm."""
