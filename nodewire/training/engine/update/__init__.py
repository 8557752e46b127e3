"""Updates of weights: compressed, aggregated, applied, proven."""
