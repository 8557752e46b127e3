"""How far it is, for whoever waits: lines on stderr, with the seconds since this process began."""

from __future__ import annotations

import sys
import time

STARTED_S = time.monotonic()


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"[{time.monotonic() - STARTED_S:6.1f} s] {text}", file=sys.stderr, flush=True)
