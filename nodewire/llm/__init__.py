"""Decoders: stages with KV caches, the driver that closes their ring, and the single-process reference."""
