"""Fields of a config.json and names of a checkpoint's tensors, read alike for all families."""
