"""Honest results and cheats compared."""
