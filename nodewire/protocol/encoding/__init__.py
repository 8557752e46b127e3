"""Documents as bytes, and their hashes, tags and field types."""
