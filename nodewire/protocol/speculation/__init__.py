"""Frames with guesses, and the plain history that they leave."""
