"""Tasks that a provider holds, and the workers that compute them."""
