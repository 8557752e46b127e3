"""One client's conversation, live subscriptions, and what waits to be sent."""
