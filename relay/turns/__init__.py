"""What clients may cost: prices, fair turns, slots and connections."""
