"""Secured channels: TCP, TLS, and who is at the other end."""
