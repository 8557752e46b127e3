"""Links between two nodes: made, kept, watched."""
