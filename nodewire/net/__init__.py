"""Addresses, and who may come from them: what listens and what is dialled, whatever the protocol."""
