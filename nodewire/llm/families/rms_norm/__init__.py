"""Families with RMSNorm and gated MLPs."""
