"""One file for each NIP."""
