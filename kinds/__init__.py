"""Job kinds, one file each: schema, serve, verify. What computes stands in the worker entry that a kind names."""
