"""Commands about the market, its money and its keys."""
