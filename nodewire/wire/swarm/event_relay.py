"""Events over links, in place of relays (nodewire.nostr.event_transport).

They are for nodes that know each other and nobody else.

An event goes to those whom its `p` tags name, as a control document of the link to them. What comes counts if who sent
it signed it; a gift wrap, which has a key of its own, from anybody. Nothing is stored: who is not there gets nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from nodewire.errors import BadFrame, NodewireError, TimedOut
from nodewire.nostr import event as events
from nodewire.nostr.nips import nip59
from nodewire.nostr.subscription import MAX_QUEUED_EVENTS, Subscription

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nodewire.nostr.event import Event
    from nodewire.nostr.nips.nip01 import Filter
    from nodewire.wire.framing.frames import Document
    from nodewire.wire.link.link import Link

EVENT = "event"
"""The type of the document."""
_HERE = "links"
_RETURN_S = 2.0
"""How long one without an address, who has to come, is waited for."""
log = logging.getLogger("nodewire.wire")


class Links(Protocol):
    """The node, as far as this needs it."""

    async def link(self, public: str, addresses: Sequence[str]) -> Link: ...

    async def reach(self, peer: str) -> Link: ...


class LinkEventTransport:
    """`links` is set when there is a node, which is given `handle`."""

    def __init__(self, public: str, addresses: Mapping[str, Sequence[str]]) -> None:
        """`addresses` of those who are dialled, by public key."""
        self.links: Links | None = None
        self._public, self._addresses = public, addresses
        self._subscriptions: dict[str, Subscription] = {}
        self._last_id = 0

    def subscribe(self, filters: Iterable[Filter], *, max_queued: int = MAX_QUEUED_EVENTS) -> Subscription:
        """What comes from now on and matches any of `filters`, until closed."""
        self._last_id += 1
        made = Subscription(
            f"n{self._last_id}",
            tuple(filters),
            [_HERE],
            max_queued,
            is_genuine=lambda event: True,  # `heard` has seen to it
            on_close=self._closed,
        )
        made.stand(_HERE, "eose", "")
        self._subscriptions[made.id] = made
        return made

    async def fetch(
        self, filters: Iterable[Filter], timeout_s: float = 10.0, *, max_events: int = MAX_QUEUED_EVENTS
    ) -> list[Event]:
        return []

    async def fetch_all(
        self, filters: Iterable[Filter], timeout_s: float = 30.0, *, max_events: int = 16 * MAX_QUEUED_EVENTS
    ) -> list[Event]:
        return []

    async def publish(self, event: Event, timeout_s: float = 10.0) -> None:
        """Send it to all whom it names.

        Raises:
            LinkLost, TimedOut, NotAllowed, BadPeer: one of them cannot be reached.

        """
        document = {"t": EVENT, "event": event.to_json()}
        named = [peer for peer in dict.fromkeys(event.values("p")) if peer != self._public]
        try:
            async with asyncio.timeout(timeout_s):
                sent = await asyncio.gather(*(self._send(peer, document) for peer in named), return_exceptions=True)
        except TimeoutError:
            raise TimedOut("event", f"not everybody was reached within {timeout_s:g} s") from None
        for failure in sent:
            if failure is not None:
                raise failure

    def handle(self, peer: str, document: Document) -> bool:
        """Whether a document is an event; then those who follow have it.

        Raises:
            BadFrame, BadEvent, BadSignature, TooLarge: it is none, or not the peer's own: the link's end.

        """
        if document["t"] != EVENT:
            return False
        text = document.get("event")
        if not isinstance(text, str):
            raise BadFrame("event", "not the JSON of one")
        event = events.parse(text)
        if event.pubkey != peer and event.kind != nip59.EPHEMERAL_GIFT_WRAP:
            raise BadFrame("event", "of another than who sends it")
        for subscription in list(self._subscriptions.values()):
            subscription.accept(event, len(text))
        return True

    def _closed(self, subscription: str) -> None:
        self._subscriptions.pop(subscription, None)

    async def _send(self, peer: str, document: Document) -> None:
        assert self.links is not None
        addresses = self._addresses.get(peer, ())
        try:
            if addresses:
                link = await self.links.link(peer, addresses)
            else:
                async with asyncio.timeout(_RETURN_S):
                    link = await self.links.reach(peer)
        except TimeoutError:
            raise TimedOut(peer, f"did not come back within {_RETURN_S:g} s") from None
        except NodewireError as error:
            log.debug("%s is not told: %s", peer[:8], error)
            raise
        link.send_control(document)
