"""Blobs on disk, and Blossom over HTTP."""
