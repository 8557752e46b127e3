"""Commands that start daemons."""
