"""Models registered: traced, cut, compared with themselves and written."""
