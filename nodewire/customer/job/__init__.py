"""One job at its customer: planned, requested, run and settled."""
