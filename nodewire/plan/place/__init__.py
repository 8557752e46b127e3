"""Which node should hold which tasks: advice for whoever runs several machines or chooses what to hold next.

Pure: frozen descriptions in, placements out. Nothing here is part of `assign/1`, which draws among what is held; so it
may use floating point and a solver.
"""
