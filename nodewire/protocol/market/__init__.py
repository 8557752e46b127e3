"""What nodes announce and a snapshot holds: ads, heartbeats, bonds, observations."""
