"""What a worker process may do."""
