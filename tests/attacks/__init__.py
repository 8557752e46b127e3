"""Attacks on nodewire by hostile strangers: each test is one that once worked, or that somebody is sure to try."""
