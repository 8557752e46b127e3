"""Bonds, and what certified verdicts take from them."""
