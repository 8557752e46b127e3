"""A task's program read without an engine: its sizes, and the axis of its batch."""
