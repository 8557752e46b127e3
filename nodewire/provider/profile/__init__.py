"""How fast a node is: measured before it is announced."""
