"""Samples, statements and verdicts, and how results are compared."""
