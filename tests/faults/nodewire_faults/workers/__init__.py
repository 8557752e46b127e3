"""Worker entries: one for each cheat of the worker, and one for all cheats of the daemon."""
