"""Which models are accepted, and what their tasks take."""
