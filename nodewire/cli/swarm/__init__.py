"""Commands of a swarm by a file."""
