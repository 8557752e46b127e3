"""Commands that buy inference."""
