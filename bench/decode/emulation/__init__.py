"""Emulated drivers and stages, for `bench.decode`."""
