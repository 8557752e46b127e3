"""How nodes are reached that cannot be dialled: what a router opens, hole punching by offers, and splices."""
