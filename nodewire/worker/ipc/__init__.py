"""Messages and tensors between daemon and worker."""
