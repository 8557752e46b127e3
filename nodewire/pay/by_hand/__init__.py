"""Payments that a person makes with a role's wallet, and what the wallet was used for."""
