"""One ring of low latency among many nodes."""
