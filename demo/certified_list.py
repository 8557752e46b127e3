"""What the committee certifies, epoch by epoch, read as every customer reads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import nodewire.market
from nodewire.config import CustomerConfig
from nodewire.errors import NoQuorum

LISTED_EPOCHS = 60
"""Certified epochs in which a provider must have come or gone: on a busy machine they take longer, too."""
STILL_S = 180.0
"""So long nothing may happen at all: no epoch is certified."""


class Listing:
    """Who is listed for what."""

    def __init__(self, market: nodewire.market.Market) -> None:
        self._market = market

    @classmethod
    @asynccontextmanager
    async def open(cls, config: Path) -> AsyncIterator[Listing]:
        async with AsyncExitStack() as stack:
            _, _, market = await nodewire.market.open_market(stack, CustomerConfig.load(config))
            following = asyncio.create_task(market.follow())
            stack.callback(following.cancel)
            yield cls(market)

    async def until(self, public: str, digest: str, task: str, *, listed: bool) -> str:
        """Wait until a provider is listed for a task of the model with this digest, or is no more.

        Listed, it must be placed, too: a node that others have not found yet counts as far away, and others are drawn.
        Why it never came to that; empty if it did.
        """
        epoch = -1
        for _ in range(LISTED_EPOCHS):
            try:
                one = await self._market.epoch(timeout_s=STILL_S, after=epoch)
            except NoQuorum as error:
                return str(error)
            epoch = one.body.epoch
            snapshot = await self._market.snapshot(one.body.snapshot)
            nodes = [node for node in snapshot.nodes if node.pubkey == public and (node.is_placed or not listed)]
            held = [h for node in nodes for h in node.held if h.manifest == digest]
            if any(offer.task == task for h in held for offer in h.tasks) == listed:
                return ""
        return f"{LISTED_EPOCHS} epochs were certified meanwhile, and the newest says otherwise"
