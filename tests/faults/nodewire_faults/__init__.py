"""Dishonest providers for nodewire's benches and tests; see README.md beside this package."""

SENDING = ("late", "twice", "silent")
"""Those of whoever computes honestly, and sends as it should not."""
CHEATS = (
    *(
        "wrong",
        "scaled",
        "skipped",
        "other",
        "stale",
        "copied",
        "equivocating",
        "uncommitted",
        "nan",
        "short",
        "misquoted",
        "forged",
        "mistaken",
        "second",
        "colder",
        "wary",
    ),
    *SENDING,
)
