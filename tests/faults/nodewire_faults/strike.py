"""What a cheat altered, said in its provider's log: a bench counts it, and fails where it is nothing."""

from __future__ import annotations

import sys

STRUCK = "the cheat altered"
"""A line of the log has this for each frame, token or weight that is not the honest one."""


def say_struck(what: str) -> None:
    print(f"{STRUCK} {what}", file=sys.stderr, flush=True)
