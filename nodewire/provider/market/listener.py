"""A provider on the wire: where it listens, what its ad says of that, and how it is met if nobody can dial it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nodewire.errors import BadConfig, NodewireError
from nodewire.net import host_port
from nodewire.net.listen_address import named_by
from nodewire.protocol.encoding.address import SpliceAddress, is_splice
from nodewire.wire.nat import public_address
from nodewire.wire.nat.rendezvous import Reach

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from nodewire.config import WireConfig
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool
    from nodewire.wire.node import Node

log = logging.getLogger("nodewire.provider")
_ALL = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


async def open_wire(stack: AsyncExitStack, config: WireConfig, node: Node, keys: Keys, pool: Pool) -> tuple[str, ...]:
    """Listen, and hear offers; the addresses for the ad.

    Raises:
        BadConfig: it cannot listen there. Or it listens on all addresses of this machine, none of which can be
            reached, nor is there a splice.

    """
    host, port = host_port.parse(config.listen, "wire.listen", least_port=0, error=BadConfig)
    with named_by("wire.listen", config.listen):
        listening = await node.listen(host, port)
    wire = config.announce or (listening,)
    if host in _ALL and not config.announce:
        wire = await _found(stack, config, listening, keys, pool)
    here = [SpliceAddress.parse(address) for address in wire if is_splice(address)]
    node.ladder = Reach(node, keys, pool, here=here, allow_private=config.private)
    return wire


async def _found(stack: AsyncExitStack, config: WireConfig, listening: str, keys: Keys, pool: Pool) -> tuple[str, ...]:
    splices = tuple(SpliceAddress.parse(address) for address in config.splices)
    if not splices:
        try:
            splices = await public_address.find(pool)
        except NodewireError as error:
            log.warning("no splice is looked for: %s", error)
    seen = await public_address.look(splices, keys, allow_private=config.private)
    wire, mapping = await public_address.addresses(listening, seen, upnp=config.upnp)
    if mapping is not None:
        stack.push_async_callback(mapping.close)
        keeping = asyncio.create_task(mapping.keep())
        stack.callback(keeping.cancel)
    if not wire:
        raise BadConfig(
            "wire.listen",
            f"{config.listen}: no way leads here. The router opens no port, and {seen.refused or 'no splice answers'}."
            " Name the address that leads here in [wire] announce, or a splice in [wire] splices",
        )
    return wire
