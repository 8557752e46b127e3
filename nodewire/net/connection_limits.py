"""Slots that strangers share: how many, and which one makes room for the next.

No new address is turned away. When the room is full, one connection goes of the address that has most of
them: so one address, however many connections it opens and whatever it does not say on them, displaces only its own,
and honest peers behind one NAT have the whole room if nobody else wants it.
"""

from __future__ import annotations

import ipaddress
from typing import Generic, TypeVar

_G = TypeVar("_G")


class Strangers(Generic[_G]):
    """At most `most` guests, each from an address. With `keeps_old` the newest guest makes room, not the oldest.

    Age is a merit of a guest that works, and none of one that says nothing.
    """

    def __init__(self, most: int, *, keeps_old: bool = False) -> None:
        self._most, self._keeps_old = most, keeps_old
        self._from: dict[_G, str] = {}
        self._of: dict[str, dict[_G, None]] = {}
        """By origin, the oldest first."""

    def __len__(self) -> int:
        return len(self._from)

    def __contains__(self, guest: object) -> bool:
        return guest in self._from

    def enter(self, guest: _G, address: str) -> _G | None:
        """Let `guest` in. The guest that must go for it is returned; it may be the same one."""
        origin = origin_of(address)
        self._from[guest] = origin
        self._of.setdefault(origin, {})[guest] = None
        if len(self._from) <= self._most:
            return None
        # Of origins that have equally many, the one that came first makes room.
        crowd = max(self._of.values(), key=len)
        displaced = next(reversed(crowd) if self._keeps_old else iter(crowd))
        self.leave(displaced)
        return displaced

    def leave(self, guest: _G) -> None:
        """The guest is no stranger any more, or gone."""
        origin = self._from.pop(guest, None)
        if origin is None:
            return
        of = self._of[origin]
        del of[guest]
        if not of:
            del self._of[origin]


def origin_of(address: str) -> str:
    """What one party has of addresses without effort: an IPv4 address, or the /64 of an IPv6 one."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
