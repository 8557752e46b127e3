"""A provider on the market: its ad, its bond, its address, its observations."""
