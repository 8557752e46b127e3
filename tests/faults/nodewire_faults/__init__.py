"""Dishonest providers for nodewire's benches and tests; see README.md beside this package."""

SENDING = ("late", "twice", "silent")
"""Those of whoever computes honestly, and sends as it should not."""
WORKERS = {
    "wrong": "wrong",
    "scaled": "scaled",
    "skipped": "skipped",
    "other": "other",
    "stale": "stale",
    "copied": "skipped",
    "equivocating": "honest",
    "uncommitted": "honest",
    "nan": "nan",
    "short": "short",
    "misquoted": "misquoted",
    "forged": "honest",
    "mistaken": "mistaken",
    "second": "second",
    "colder": "colder",
    "wary": "honest",
    **dict.fromkeys(SENDING, "honest"),
}
"""By cheat, the module of `workers` that its worker loads: where the daemon cheats, an honest one."""
CHEATS = tuple(WORKERS)
