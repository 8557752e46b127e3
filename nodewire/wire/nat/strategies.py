"""The rungs of one meeting, raced: holes are punched to all places at once, and the splice stands by.

Both ends try all of it; the one with the lower key dials in TLS, so it is the one that decides. It gives punching a
head start of three round trips, since what is decided first stays: a splice costs a detour and somebody's bandwidth.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from nodewire.errors import BadPeer, LinkLost, NodewireError, NotAllowed
from nodewire.net import address_policy
from nodewire.protocol.encoding.address import ip_port
from nodewire.protocol.market.splice_ad import LEAST_PORT
from nodewire.wire.nat.hole_punch import answer, punch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.wire.link.link import Link, Rung
    from nodewire.wire.nat.splice_client import SpliceConnection

HEAD_START_ROUND_TRIPS = 3
LEAST_HEAD_START_S, MOST_HEAD_START_S = 0.2, 0.6


class Ends(Protocol):
    """The node, as far as meetings need it."""

    public: str

    async def secure(self, peer: str, connection: socket.socket, rung: Rung) -> Link: ...

    async def serve(self, peer: str, connection: socket.socket, rung: Rung) -> Link: ...


async def climb(
    ends: Ends,
    peer: str,
    entered: SpliceConnection,
    places: Sequence[str],
    splice_ms: int,
    *,
    asked: bool,
    allow_private: bool,
) -> Link:
    """A link to `peer`, who does the same now, from its `places`; `splice_ms` is its round trip to the splice.

    `asked`: we did, and have its answer, of which it learns by one byte through the splice. From then on both knock.

    Raises:
        BadPeer: somebody else was there, by a hole or by the splice.
        LinkLost, TimedOut and others: no rung holds.

    """
    dials = ends.public < peer
    round_trip_s = entered.rtt_s + splice_ms / 1_000
    head_start_s = min(max(HEAD_START_ROUND_TRIPS * round_trip_s, LEAST_HEAD_START_S), MOST_HEAD_START_S)

    async def proven(connection: socket.socket, rung: Rung) -> Link:
        return await (ends.secure if dials else ends.serve)(peer, connection, rung)

    async def by_punching(where: Any) -> Link:
        return await proven(await punch(entered.family, entered.port, where), "punch")

    async def by_answering() -> Link:
        return await proven(await answer(entered.family, entered.port, {host for host, _ in doors}), "punch")

    async def by_splice() -> Link:
        await (entered.say_go() if asked else entered.hear_go())
        if dials and rungs:
            await asyncio.wait(rungs, timeout=head_start_s)
        return await proven(entered.give(), "splice")

    doors = knocked(entered, places, allow_private)
    rungs = [asyncio.create_task(by_punching(where)) for where in doors]
    if doors:
        rungs.append(asyncio.create_task(by_answering()))
    return await _first([*rungs, asyncio.create_task(by_splice())], peer, ends_others=dials)


async def _first(rungs: Sequence[asyncio.Task[Link]], peer: str, *, ends_others: bool) -> Link:
    pending, winner = set(rungs), None
    failures: list[NodewireError] = []
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for rung in done:
                try:
                    winner = winner or rung.result()
                except NodewireError as error:
                    failures.append(error)
            if winner is not None:
                return winner
    finally:
        for rung in rungs:
            if not rung.cancel() and rung.exception() is None and ends_others and rung.result() is not winner:
                rung.result().end(NotAllowed("link", "another way was first"))
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*rungs, return_exceptions=True)
    strangers = (failure for failure in failures if isinstance(failure, BadPeer))
    raise next(strangers, next((f for f in failures if not isinstance(f, LinkLost)), failures[0]))


def knocked(entered: SpliceConnection, places: Sequence[str], allow_private: bool) -> list[tuple[str, int]]:
    """Those of a peer's `places` that we knock at: public ones, or any by leave; no service's port, and not our own."""
    found: list[tuple[str, int]] = []
    version = 6 if entered.family is socket.AF_INET6 else 4
    for place in dict.fromkeys(places):
        ip, port = ip_port(place)
        if (
            ip.version == version
            and port >= LEAST_PORT
            and place not in (entered.seen, entered.local)
            and address_policy.is_dialled(str(ip), allow_private=allow_private)
        ):
            found.append((str(ip), port))
    return found
