"""Links and the network in numbers."""
