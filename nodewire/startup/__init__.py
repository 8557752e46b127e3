"""Daemons opened from their configurations: provider, oracle, gateway."""
