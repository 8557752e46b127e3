"""Which jobs a provider takes, and what it says to the others."""
