"""Payments by nutzap (NIP-61): a provider claims those that come, a customer pays by them from its wallet of ecash."""
