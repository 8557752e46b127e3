"""Weights on disk: safetensors files and the directories that hold them, read and written in pieces."""
