"""A discrete-event simulator of a market's data plane: pools, traces, routers, and what happens frame by frame."""
