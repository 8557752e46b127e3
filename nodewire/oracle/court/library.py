"""Manifests, read before anybody is judged by them: their authors may replace or delete them at any time.

A plan names its manifest by digest, and every node that it can name has offered it in a certified snapshot before. So
an oracle reads each that a bonded node offers when it first sees it, and `Market.manifest` remembers it. Whoever starts
again after it was replaced lacks it, and votes as f+1 others have found.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError, NoQuorum
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.model import manifest_event

if TYPE_CHECKING:
    from nodewire.market import Market
    from nodewire.nostr.relays import Relays
    from nodewire.protocol.market.snapshot import Snapshot

MAX_KNOWN = 1_024
"""Manifests that are read ahead; further ones when they are needed, if they are still to be had."""

_log = logging.getLogger("nodewire.oracle.library")


class Library:
    """`await run()` until cancelled."""

    def __init__(self, market: Market, relays: Relays) -> None:
        self._market, self._relays = market, relays
        self._known: set[str] = set()

    async def run(self) -> None:
        """Read what each new epoch offers."""
        newest, epoch_s = -1, self._market.committee.epoch_ms / 1000
        while True:
            try:
                epoch = await self._market.epoch(timeout_s=4 * epoch_s, after=newest)
            except NoQuorum:
                continue
            newest = epoch.body.epoch
            try:
                await self.read(await self._market.snapshot(epoch.snapshot))
            except (NodewireError, OSError) as error:
                _log.info("manifests of epoch %d: %s", newest, error)

    async def read(self, snapshot: Snapshot) -> None:
        """Read the manifests that its bonded nodes hold. Raises RelayRefused, TimedOut: no relay answers."""
        bonded = (node for node in snapshot.nodes if self._market.committee.is_bond(node.bond_msat))
        held = {one.manifest for node in bonded for one in node.held}
        wanted = sorted(held - self._known)[: max(0, MAX_KNOWN - len(self._known))]
        if not wanted:
            return
        events = await self._relays.fetch([Filter(kinds=frozenset({kinds.MANIFEST}), tags={"x": frozenset(wanted)})])
        for event in events:
            digest = event.tag("x") or ""
            if digest not in wanted or digest in self._known:
                continue
            try:
                await self._market.manifest(manifest_event.address(event), digest)
            except (NodewireError, OSError) as error:  # another event may have it
                _log.info("manifest %s: %s", digest[:8], error)
                continue
            self._known.add(digest)
