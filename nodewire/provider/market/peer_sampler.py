"""A provider makes a few acquaintances, so that it knows where it is before anybody plans with it.

Network coordinates are learned on links (`nodewire.wire.measure.survey`), and a provider that never worked has none. So
it dials nodes of the newest snapshot, drawn at random, until it has eight links; a job's links count. Unless all of its
own addresses are private, it dials public ones only: strangers write ads, and must not have it knock at doors of its
own network.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING

from nodewire.errors import BadInput, NodewireError
from nodewire.net import host_port
from nodewire.net.address_policy import is_dialled

if TYPE_CHECKING:
    from nodewire.market import Market
    from nodewire.wire.node import Node

NEIGHBOURS = 8
PACE_S = 2.0
AGAIN_S = 300.0
"""Until who could not be reached is tried again."""
_EPOCH_S = 60.0

log = logging.getLogger("nodewire.provider")


class Acquaintance:
    def __init__(self, node: Node, market: Market, *, allow_private: bool) -> None:
        self._node = node
        self._market = market
        self._allow_private = allow_private
        self._chance = random.Random()  # noqa: S311 - whom to meet is no secret
        self._failed: dict[str, float] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if len(self._node.peers) < NEIGHBOURS:
                try:
                    await self._meet()
                except NodewireError as error:
                    log.debug("no acquaintance: %s", error)
            await asyncio.sleep(PACE_S)

    async def _meet(self) -> None:
        """Link to one node more, if there is one."""
        epoch = await self._market.epoch(timeout_s=_EPOCH_S)
        snapshot = await self._market.snapshot(epoch.body.snapshot, keep=False)
        now_s = time.monotonic()
        self._failed = {peer: at_s for peer, at_s in self._failed.items() if now_s - at_s < AGAIN_S}
        known = {self._node.public, *self._node.peers, *self._failed}
        if not (strangers := [node.pubkey for node in snapshot.nodes if node.pubkey not in known]):
            return
        peer = self._chance.choice(strangers)
        self._failed[peer] = now_s
        ad = snapshot.ads({peer}).get(peer)
        addresses = [one for one in ad.wire if self._is_dialled(one)] if ad is not None else []
        if addresses:
            await self._node.link(peer, addresses)
            del self._failed[peer]

    def _is_dialled(self, address: str) -> bool:
        return is_dialled(_host(address), allow_private=self._allow_private)


def is_private(address: str) -> bool:
    """Whether "host:port" is an IP address that is not of the internet's."""
    host = _host(address)
    return is_dialled(host, allow_private=True) and not is_dialled(host, allow_private=False)


def _host(address: str) -> str:
    """Empty if it is no address."""
    try:
        return host_port.parse(address)[0]
    except BadInput:
        return ""
