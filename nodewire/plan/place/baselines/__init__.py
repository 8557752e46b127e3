"""Placements of other systems, to compare with."""
