"""Which node should hold which tasks: advice for whoever runs several machines or chooses what to hold next.

Pure: frozen descriptions in, placements out; a generator of random numbers is handed in where a method draws. Nothing
here is part of `assign/2`, which draws among what is held; so it may use floating point and a solver. `advice` is the
way in. What is guaranteed:

- a ring on up to 12 nodes, tasks and links unequal: nothing is better (`ring`);
- replication and shared time up to some hundred pairs: nothing is better if the answer says so; larger ones come with a
  bound that nobody exceeds (`replication`, `share`);
- a graph with up to 5,000 assignments: nothing is better (`dag`);
- all others (`search`, `fleet`, large graphs): every task is held within memory, and the same input gives the same
  answer. `bench.sim.place` says how good they were.
"""
