"""Frames kept and signed, and asked for again."""
