"""Blobs by their hash: Blossom servers and the local cache (`blobs`)."""
