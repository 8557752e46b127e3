"""Worker entries, one for each cheat."""
