"""A training's state machine. Pure, except for the journal in SQLite."""
