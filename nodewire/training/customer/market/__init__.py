"""A training's customer on the market: requests, results, audits, payments."""
