"""Scripts that make what stands in docs/ out of what programs printed."""
