"""Planning, pure: which node runs which task (`assign`), and whether somebody else's answer is the right one (`audit`)."""
