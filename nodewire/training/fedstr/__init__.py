"""Rounds for customers who speak FEDSTR's layout: translated into our own terms, trained by the same worker."""
