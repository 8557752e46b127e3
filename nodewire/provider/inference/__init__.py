"""Jobs of inference at a provider, from ticket to result."""
