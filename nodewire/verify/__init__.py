"""Sampled chunks computed again, as oracles and drawn verifiers do it. NIPS.md, "Samples"."""
