"""What a provider keeps of its work, shows of it, commits to, and verifies of others."""
