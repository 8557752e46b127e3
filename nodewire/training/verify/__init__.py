"""A training computed again, and its transcript held against itself."""
