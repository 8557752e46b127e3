"""What a node announces that listens on all addresses: its own where it is public, else its router's, and splices.

`look` looks from where the node stands; `addresses` says what others should be told. Neither needs configuration.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from nodewire.errors import NodewireError
from nodewire.net import address_policy, host_port
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.encoding.address import SpliceAddress, ip_port
from nodewire.protocol.market import splice_ad as splices
from nodewire.wire.nat import splice_client
from nodewire.wire.nat.upnp import PortMapping

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys

MAX_ASKED = 8
"""Splices of those found that are tried."""
MAX_FOUND = 256
"""Ads that are looked through: of the newest alone a stranger could make all."""
MAX_ANNOUNCED = 2
_FETCH_S = 10.0

_log = logging.getLogger("nodewire.wire")

Nat = Literal["none", "cone", "symmetric", "unknown"]


class Finds(Protocol):
    """A pool of relays, as far as this needs it."""

    async def fetch(self, filters: Collection[Filter], timeout_s: float = ...) -> list[Event]: ...


@dataclass(frozen=True, slots=True)
class Outlook:
    """What can be seen from here. `nat` is "unknown" with fewer than two splices, unless there is none."""

    nat: Nat
    seen: tuple[str, ...]
    """Where one port of ours comes from, as each splice sees it."""
    splices: tuple[SpliceAddress, ...]
    """Those that answer, the nearest first."""
    splice_ms: tuple[int, ...]
    """The round trip to each."""
    refused: str = ""
    """Why no splice answers."""
    own: str = ""
    """This machine's own address, if it is public and a splice sees us there: of several one may lie."""

    @property
    def rung(self) -> Literal["address", "punch", "splice", "none"]:
        """The best rung that others need to reach a node here, as far as it depends on this end (UPnP apart)."""
        if self.nat == "none":
            return "address"
        if not self.splices:
            return "none"
        return "splice" if self.nat == "symmetric" else "punch"


async def find(relays: Finds) -> tuple[SpliceAddress, ...]:
    """Some of the splices whose ads the relays have, drawn at random. Raises as the pool's fetch."""
    wanted = Filter(kinds=frozenset({kinds.AD}), tags={"k": frozenset({str(kinds.SPLICE)})}, limit=MAX_FOUND)
    found: dict[SpliceAddress, None] = {}
    for event in await relays.fetch([wanted], timeout_s=_FETCH_S):
        try:
            ad = splices.parse(event)
        except NodewireError as error:
            _log.debug("a splice's ad: %s", error)
            continue
        found |= dict.fromkeys(SpliceAddress(event.pubkey, at) for at in ad.at)
    return tuple(random.sample(tuple(found), min(len(found), MAX_ASKED)))


async def look(addresses: Sequence[SpliceAddress], keys: Keys, *, allow_private: bool = False) -> Outlook:
    """Ask splices, from one port of ours, how they see it."""
    asked = addresses[:MAX_ASKED]
    if not asked:
        return Outlook("unknown", (), (), (), "no splice is known")
    first, port = None, 0
    answers: list[tuple[SpliceAddress, splice_client.SpliceConnection | NodewireError]] = []
    for address in asked:  # the first that answers fixes the port
        first = await _seen(address, keys, allow_private, 0)
        answers.append((address, first))
        if isinstance(first, splice_client.SpliceConnection):
            port = first.port
            break
    others = asked[len(answers) :]
    found = await asyncio.gather(*(_seen(address, keys, allow_private, port) for address in others))
    answers += zip(others, found, strict=True)
    heard = sorted(
        ((at, one) for at, one in answers if isinstance(one, splice_client.SpliceConnection)),
        key=lambda pair: pair[1].rtt_s,
    )
    if not heard:
        return Outlook("unknown", (), (), (), str(next(one for _, one in answers if isinstance(one, NodewireError))))
    seen = {one.seen for _, one in heard}
    own = (str(ip_port(one.local)[0]) for _, one in heard if ip_port(one.seen)[0] == ip_port(one.local)[0])
    public = next((host for host in own if address_policy.is_dialled(host, allow_private=allow_private)), "")
    nat: Nat = "unknown"
    if public:
        nat = "none"
    elif len(seen) > 1:
        nat = "symmetric"
    elif len(heard) > 1:
        nat = "cone"
    return Outlook(
        nat,
        tuple(one.seen for _, one in heard),
        tuple(at for at, _ in heard),
        tuple(round(one.rtt_s * 1_000) for _, one in heard),
        own=public,
    )


async def _seen(
    address: SpliceAddress, keys: Keys, allow_private: bool, port: int
) -> splice_client.SpliceConnection | NodewireError:
    try:
        entered = await splice_client.enter(address, None, keys, allow_private=allow_private, port=port)
    except NodewireError as error:
        return error
    entered.close()
    return entered


async def addresses(listening: str, seen: Outlook, *, upnp: bool = True) -> tuple[tuple[str, ...], PortMapping | None]:
    """What a node tells others that listens at `listening` (all addresses of this machine), and the router's mapping.

    Empty if there is no way to it: not public, no router that opens a port, no splice.
    """
    _, port = ip_port(listening)
    meeting = [str(address) for address in seen.splices[:MAX_ANNOUNCED]]
    if seen.nat == "none":
        return (host_port.written(seen.own, port), *meeting), None
    if upnp:
        try:
            mapping = await PortMapping.open(port)
        except NodewireError as error:
            _log.info("no port by UPnP: %s", error)
        else:
            return (mapping.address, *meeting), mapping
    return tuple(meeting), None
