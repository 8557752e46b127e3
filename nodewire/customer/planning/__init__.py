"""Plans, and providers that failed a moment ago."""
