"""A provider that follows demand: what it should hold next, and the change to it."""
