"""Meets peers that cannot be dialled: offers to them and answers to theirs, over the relays that both read.

An offer is sent again until it is answered, an answer whenever its offer comes again. Only who is expected gets one: a
job with us, a judge, or whoever the node's role names; to others we are not there. Of two offers that cross, the one of
the lower key counts.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from nodewire.core.bounded_dict import BoundedDict
from nodewire.errors import LinkLost, NodewireError, TimedOut
from nodewire.net.rate_limits import PerMinute
from nodewire.nostr.nips import nip59
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol.encoding.address import SpliceAddress
from nodewire.wire.nat import offer as offers
from nodewire.wire.nat import splice_client
from nodewire.wire.nat.offer import Offer
from nodewire.wire.nat.strategies import Ends, climb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.wire.link.happy_eyeballs import Way
    from nodewire.wire.link.link import Link
    from nodewire.wire.nat.splice_client import SpliceConnection

AGAIN_S = 1.0
"""Until an offer is sent once more."""
MEETING_S = 8.0
"""For one meeting, from the first offer on: then it is tried at the next splice."""
MAX_MEETINGS = 64
PEER_PER_MINUTE = 20
ALL_PER_MINUTE = 6_000
"""Wraps that are opened at all, whoever made them: each costs two key agreements and two signatures (0.15 ms). Beyond
that an honest offer is lost with the others, and sent again every second."""
_MAX_SEEN = 4_096
_PUBLISH_S = 5.0

_log = logging.getLogger("nodewire.wire")


class Events(AbstractAsyncContextManager["Events"], Protocol):
    """A subscription, as far as this needs it."""

    def __aiter__(self) -> AsyncIterator[Event]: ...


class Relays(Protocol):
    """A pool of relays (`nodewire.nostr.pool.Pool`), as far as this needs it."""

    async def publish(self, event: Event, timeout_s: float = ...) -> object: ...

    def subscribe(self, filters: Collection[Filter]) -> Events: ...


class Meets(Ends, Protocol):
    """The node."""

    def expects(self, peer: str) -> bool: ...

    async def meet(self, peer: str, way: Way) -> None: ...

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...


@dataclass(slots=True)
class _Rendezvous:
    """One that we asked for."""

    peer: str
    answered: asyncio.Future[Offer]


@dataclass(slots=True)
class _RendezvousAnswer:
    """One that a peer asked for: the answer as soon as there is one."""

    peer: str
    answer: Offer | None = None


class Reach:
    """Makes offers for a node, and hears those of others at the splices that it has announced (`here`)."""

    def __init__(
        self,
        node: Meets,
        keys: Keys,
        relays: Relays,
        *,
        here: Collection[SpliceAddress] = (),
        allow_private: bool = False,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        """`allow_private`: peers and splices in private networks may be connected to, on whoever's word."""
        self.here = frozenset(here)
        self._node = node
        self._keys = keys
        self._relays = relays
        self._allow_private = allow_private
        self._unix_s = unix_s
        self._meetings: dict[str, _Rendezvous] = {}
        self._answered = BoundedDict[str, _RendezvousAnswer](_MAX_SEEN)
        self._answering = 0
        self._of_all, self._of_peers = PerMinute(ALL_PER_MINUTE), PerMinute(PEER_PER_MINUTE)
        self._hearing = node.run(self._hear()) if self.here else None

    async def link(self, peer: str, splices: Sequence[SpliceAddress]) -> Link:
        """A link to `peer`, who waits for offers and has announced these splices. Tried until it is cancelled.

        Raises:
            NodewireError: it was tried at every splice, and no rung held: why not at the last.

        """
        failed: NodewireError = LinkLost(peer, "no splice")
        for address in splices:
            try:
                async with asyncio.timeout(MEETING_S):
                    return await self._offer(peer, address)
            except TimeoutError:
                failed = TimedOut("offer", f"{peer} did not meet us at {address.at}")
            except NodewireError as error:
                failed = error
            _log.debug("%s at the splice %s: %s", peer[:8], address.at, failed)
        raise failed

    async def _offer(self, peer: str, address: SpliceAddress) -> Link:
        if self._hearing is None:  # for answers
            self._hearing = self._node.run(self._hear())
        session, room = secrets.token_hex(32), secrets.token_hex(32)
        entered = await splice_client.enter(address, room, self._keys, allow_private=self._allow_private)
        meeting = _Rendezvous(peer, asyncio.get_running_loop().create_future())
        self._meetings[session] = meeting
        try:
            offered = self._said("offer", session, room, entered)
            sending = asyncio.create_task(self._send_until_cancelled(offered, peer))
            try:
                answer = await meeting.answered
            finally:
                sending.cancel()
            return await self._climb(peer, entered, answer, asked=True)
        finally:
            del self._meetings[session]
            entered.close()

    async def _climb(self, peer: str, entered: SpliceConnection, theirs: Offer, *, asked: bool) -> Link:
        return await climb(
            self._node, peer, entered, theirs.places, theirs.splice_ms, asked=asked, allow_private=self._allow_private
        )

    async def _hear(self) -> None:
        mine = Filter(kinds=frozenset({nip59.EPHEMERAL_GIFT_WRAP}), tags={"p": frozenset({self._keys.public})})
        async with self._relays.subscribe([mine]) as events:
            async for event in events:
                try:
                    self._of_all.acquire("")
                    heard = offers.unwrap(event, self._keys, now_s=self._unix_s())
                    if heard is not None:
                        self._heard(*heard)
                except NodewireError as error:
                    _log.debug("offer: %s", error)

    def _heard(self, peer: str, offer: Offer) -> None:
        if offer.type == "answer":
            meeting = self._meetings.get(offer.session)
            if meeting is not None and meeting.peer == peer and not meeting.answered.done():
                meeting.answered.set_result(offer)
            return
        known = self._answered.get(offer.session)
        if known is not None:
            if known.answer is not None and known.peer == peer:
                self._node.run(self._send(known.answer, peer))
            return
        address = SpliceAddress.parse(offer.splice)
        if address not in self.here or not self._node.expects(peer):
            _log.debug("an offer of %s, whom nobody expects at %s", peer[:8], address.at)
            return
        if self._keys.public < peer and any(meeting.peer == peer for meeting in self._meetings.values()):
            return  # it will answer ours
        self._of_peers.acquire(peer)
        if self._answering >= MAX_MEETINGS:
            _log.warning("an offer of %s is passed over: %d meetings are under way", peer[:8], MAX_MEETINGS)
            return
        answered = self._answered[offer.session] = _RendezvousAnswer(peer)
        self._node.run(self._answer(answered, offer, address))

    async def _answer(self, answered: _RendezvousAnswer, offer: Offer, address: SpliceAddress) -> None:
        peer = answered.peer

        async def way() -> Link:
            entered = await splice_client.enter(address, offer.room, self._keys, allow_private=self._allow_private)
            try:
                answer = answered.answer = self._said("answer", offer.session, offer.room, entered)
                sending = asyncio.create_task(self._send(answer, peer))
                try:
                    return await self._climb(peer, entered, offer, asked=False)
                finally:
                    sending.cancel()
            finally:
                entered.close()

        self._answering += 1
        try:
            async with asyncio.timeout(MEETING_S):
                await (self._node.meet(peer, way) if self._keys.public < peer else way())
        except (NodewireError, TimeoutError) as error:
            _log.info("%s was not met at the splice %s: %s", peer[:8], address.at, str(error) or "took too long")
        finally:
            self._answering -= 1

    def _said(self, kind: Any, session: str, room: str, entered: SpliceConnection) -> Offer:
        return Offer(
            type=kind,
            session=session,
            room=room,
            splice=str(entered.splice),
            places=(entered.seen, *([entered.local] if self._allow_private else [])),
            splice_ms=min(60_000, round(entered.rtt_s * 1_000)),
            expires_s=int(self._unix_s()) + offers.LIFETIME_S,
        )

    async def _send_until_cancelled(self, offer: Offer, peer: str) -> None:
        while True:
            await self._send(offer, peer)
            await asyncio.sleep(AGAIN_S)

    async def _send(self, offer: Offer, peer: str) -> None:
        wrap = offers.wrap(offer, self._keys, peer, now_s=self._unix_s())
        try:
            await self._relays.publish(wrap, timeout_s=_PUBLISH_S)
        except NodewireError as error:
            _log.debug("%s to %s: %s", offer.type, peer[:8], error)
