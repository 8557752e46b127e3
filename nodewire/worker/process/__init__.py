"""The worker's own process."""
