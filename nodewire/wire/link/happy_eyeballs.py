"""Ways to a peer, raced: one after another, not waiting long for the one before; the first that proves itself wins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from nodewire.errors import LinkLost, NodewireError, NotAllowed
from nodewire.wire.link.link import Link, Patience

Way = Callable[[], Awaitable[Link]]
MAX_DIALS = 64
"""Of one peer, at a time."""


async def race(ways: Sequence[Way], again: Sequence[Way], patience: Patience) -> Link:
    """The link of the way that is first. While none is through, those in `again` are tried once more every second.

    Raises:
        NodewireError: all have failed: what the first stranger says who answered, else the first failure.

    """
    waiting = list(ways)
    attempts: list[asyncio.Task[Link]] = []
    under_way: set[asyncio.Task[Link]] = set()
    winner: Link | None = None
    failures: list[NodewireError] = []
    try:
        while waiting or under_way:
            if waiting:
                attempts.append(asyncio.ensure_future(waiting.pop(0)()))
                under_way.add(attempts[-1])
            patience_s = patience.stagger_s if waiting else patience.again_s
            done, under_way = await asyncio.wait(under_way, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            if not done and not waiting and len(under_way) + len(again) <= MAX_DIALS:
                waiting.extend(again)
            for attempt in done:
                try:
                    winner = attempt.result()
                    return winner
                except NodewireError as error:
                    failures.append(error)
    finally:
        for attempt in attempts:
            if not attempt.cancel() and attempt.exception() is None and attempt.result() is not winner:
                attempt.result().end(NotAllowed("link", "another way was first"))
    # A stranger at an address says more than an address where nobody is.
    raise next((failure for failure in failures if not isinstance(failure, LinkLost)), failures[0])
