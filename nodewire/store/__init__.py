"""What a daemon keeps: blobs by their hash (`blobs`), and its own state in SQLite (`state`)."""
