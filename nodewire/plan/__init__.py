"""Planning, pure: which node runs which task (`assign`), and whether another's answer is right (`audit`)."""
