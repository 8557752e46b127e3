"""Commands that look at this machine and its links."""
