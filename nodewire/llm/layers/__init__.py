"""A decoder's layers."""
