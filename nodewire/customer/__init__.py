"""The customer role: plans jobs, buys them, pays for them. `nodewire.Customer` is its public face."""
