"""The observer of a bonded provider: it dials the nodes that a certified body draws, and beats say what it found.

It says nothing where it is not sure. A node that refuses the link is there. A node that has no address which it may
dial, or that can only be met at a splice, was not looked for.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nodewire.errors import BadInput, BadPeer, LinkLost, NodewireError, NotAllowed, TimedOut
from nodewire.net import host_port
from nodewire.net.address_policy import is_dialled
from nodewire.protocol.market import observation
from nodewire.protocol.market.observation import MAX_OBSERVED, Observation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.market import Market
    from nodewire.plan.epoch import Epoch
    from nodewire.protocol.market.ad import Ad
    from nodewire.protocol.market.snapshot import Snapshot
    from nodewire.wire.node import Node

FRESH_EPOCHS = 2
"""An observation is said for so many epochs after that of its body. Beats may cite the newest four."""
KEPT_LINKS = 32
"""Where the node has more links, those that were made to observe are closed again."""
_HEARTBEATS = 4
_EPOCH_S = 60.0
log = logging.getLogger("nodewire.provider")


class Observer:
    """`await run()` until cancelled; `report()` is for the next beat."""

    def __init__(self, node: Node, market: Market, *, allow_private: bool) -> None:
        self._node = node
        self._market = market
        self._allow_private = allow_private
        self._looked = -1
        """The epoch of which the draws were observed last."""
        self._found: tuple[int, str, tuple[Observation, ...]] | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.look(await self._market.epoch(timeout_s=_EPOCH_S, after=self._looked))
            except (NodewireError, OSError) as error:
                log.debug("nothing is observed: %s", error)
                await asyncio.sleep(self._market.committee.epoch_ms / 1_000)

    def report(self) -> tuple[str, tuple[Observation, ...]] | None:
        """The digest of the body that drew, and what was found; None if there is nothing to say now."""
        newest = self._market.newest()
        if self._found is None or newest is None or newest.epoch > self._found[0] + FRESH_EPOCHS:
            return None
        return self._found[1:]

    async def look(self, epoch: Epoch) -> None:
        """Observe the nodes that this epoch's body draws. Raises as `Market.snapshot`."""
        self._looked, digest = epoch.body.epoch, epoch.body.digest()
        snapshot = await self._market.snapshot(epoch.body.snapshot, keep=False)
        self._check_own_word(snapshot)
        drawn = self._drawn(snapshot, digest)
        ads = snapshot.ads(set(drawn))
        found = await asyncio.gather(*(self._observe(node, ads.get(node)) for node in drawn))
        said = tuple(sorted((one for one in found if one is not None), key=lambda one: one.node))
        if said:
            self._found = (self._looked, digest, said)

    def _check_own_word(self, snapshot: Snapshot) -> None:
        """Log why what this node says counts for nothing: its bond may have changed since it was drawn."""
        if self._found is None:
            return
        unit_msat = self._market.committee.bond_unit_msat
        units = {node.pubkey: node.bond_msat // unit_msat for node in snapshot.nodes}
        _, digest, said = self._found
        for one in said:
            try:
                observation.check_drawn(
                    digest, self._node.public, one.node, units.get(self._node.public, 0), sum(units.values())
                )
            except NotAllowed as error:
                log.warning("oracles refuse what this node observed: %s", error)
                return

    def _drawn(self, snapshot: Snapshot, digest: str) -> Sequence[str]:
        """The bonded ones first: those that others plan with."""
        unit_msat, me = self._market.committee.bond_unit_msat, self._node.public
        units = {node.pubkey: node.bond_msat // unit_msat for node in snapshot.nodes}
        if not (mine := units.get(me, 0)):
            return ()
        total = sum(units.values())
        drawn = [node for node in units if observation.is_drawn(digest, me, node, mine, total)]
        return sorted(drawn, key=lambda node: (units[node] == 0, node))[:MAX_OBSERVED]

    async def _observe(self, peer: str, ad: Ad | None) -> Observation | None:
        if (known := self._node.peers.get(peer)) is not None:
            return Observation(node=peer, rtt_us=max(known.rtt_us, 1)) if known.rtt_us is not None else None
        wire = ad.wire if ad is not None else ()
        addresses = [one for one in wire if self._is_dialled(one)]
        if wire and not addresses:
            return None
        try:
            if not addresses:
                raise LinkLost(peer, "announces no address")
            link = await self._node.link(peer, addresses)
        except (BadPeer, LinkLost, TimedOut):
            return Observation(node=peer, rtt_us=None)
        except NodewireError:
            return None
        for _ in range(_HEARTBEATS):
            if not await link.is_alive():
                return None
        rtt_us = link.rtt_us
        if len(self._node.peers) > KEPT_LINKS and not link.has_jobs:
            link.end(LinkLost(peer, "was observed"))
        return Observation(node=peer, rtt_us=max(rtt_us, 1)) if rtt_us is not None else None

    def _is_dialled(self, address: str) -> bool:
        try:
            return is_dialled(host_port.parse(address)[0], allow_private=self._allow_private)
        except BadInput:
            return False
