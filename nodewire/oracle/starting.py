"""Opens everything an oracle needs from its configuration, and sets it to work."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

from nodewire.config import OracleConfig
from nodewire.nostr.pool import Pool
from nodewire.oracle.daemon import Oracle
from nodewire.oracle.journal import Journal
from nodewire.oracle.setup import load_committee, load_seat
from nodewire.store.blobs import Blobs


async def start(stack: AsyncExitStack, config: OracleConfig) -> dict[str, Any]:
    """Start an oracle; returns its ready line with `wait`, which ends only by an error."""
    config.state.mkdir(parents=True, exist_ok=True)
    committee = load_committee(config.committee)
    seat = load_seat(config.seat, committee)
    pool = await stack.enter_async_context(Pool(config.relays, keys=seat.keys))
    blobs = await stack.enter_async_context(Blobs(config.blossom, config.state / "blobs", keys=seat.keys))
    journal = Journal(config.state / "journal.db")
    stack.callback(journal.close)
    oracle = Oracle(seat, committee, pool, blobs, journal, SystemClock())
    running = asyncio.create_task(oracle.run())
    stack.callback(running.cancel)
    return {"ready": "oracle", "npub": seat.keys.npub, "committee": committee.name, "wait": running}


class SystemClock:
    def time_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()
