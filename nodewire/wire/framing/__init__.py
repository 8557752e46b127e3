"""Frames as bytes, written and read. No I/O."""
