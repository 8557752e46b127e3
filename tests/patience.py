"""Waiting for what another process writes."""

from __future__ import annotations

import select


def readable(descriptor: int, seconds: float) -> bool:
    """Whether `descriptor` has something to read, or has ended, within `seconds`; its number may be any."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1_000))
