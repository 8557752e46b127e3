"""How many stages of a generation two may compute. NIPS.md, "Hedges"."""

MAX_HEDGED = 64
