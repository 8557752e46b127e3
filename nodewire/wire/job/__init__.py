"""One job's edges, control messages and queries over links."""
