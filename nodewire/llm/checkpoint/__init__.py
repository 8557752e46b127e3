"""Checkpoints in every layout that is read, and their split into tasks."""
