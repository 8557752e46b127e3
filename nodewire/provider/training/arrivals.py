"""Requests and tickets as they come in: a job begins when both are here, in whichever order, from the same key.

Anybody can read a request and send a ticket for it, which opens nothing: so tickets are kept by their authors.
"""

from __future__ import annotations

import time

from nodewire.bounded_dict import BoundedDict
from nodewire.nostr.event import Event
from nodewire.protocol import outer
from nodewire.protocol.outer import OuterRequest, OuterTicket
from nodewire.protocol.round import RoundRequest, RoundTicket

MAX_WAITING = 1_024
"""Requests without ticket, and tickets without request; the newest are kept."""
MAX_SEEN = 8_192
WAITING_S = 30.0

Complete = tuple[Event, RoundRequest | OuterRequest, RoundTicket | OuterTicket]


def ticket(text: str) -> RoundTicket | OuterTicket:
    """The ticket in JSON text, of either kind. Raises as `Schema.parse`."""
    return (OuterTicket if outer.is_ticket(text) else RoundTicket).parse(text)


class Arrivals:
    """At one provider; nothing of it outlives the process, and nothing waits longer than WAITING_S."""

    def __init__(self) -> None:
        self._requests = BoundedDict[str, tuple[float, Event, RoundRequest | OuterRequest]](MAX_WAITING)
        self._tickets = BoundedDict[tuple[str, str], tuple[float, str]](MAX_WAITING)
        """By request and author, as JSON: a recipe of empty objects is 25 times as long in memory."""
        self._seen = BoundedDict[str, None](MAX_SEEN)

    def is_new(self, id_: str) -> bool:
        """Whether this event was not seen before; from now on it was."""
        if id_ in self._seen:
            return False
        self._seen[id_] = None
        return True

    def requested(self, event: Event, request: RoundRequest | OuterRequest) -> Complete | None:
        """A request came that may be served; with its ticket, if that is here."""
        self._requests[request.id] = time.monotonic(), event, request
        return self._complete(request.id)

    def ticketed(self, author: str, request: str, text: str) -> Complete | None:
        """A ticket came; with its request, if that is here. The first of an author's is the one that counts."""
        self._tickets.setdefault((request, author), (time.monotonic(), text))
        return self._complete(request)

    def _complete(self, id_: str) -> Complete | None:
        if id_ not in self._requests:
            return None
        _, event, request = self._requests[id_]
        if (id_, request.customer) not in self._tickets:
            return None
        del self._requests[id_]
        _, text = self._tickets.pop((id_, request.customer))
        return event, request, ticket(text)

    def forget_old(self) -> None:
        """What has waited too long."""
        horizon = time.monotonic() - WAITING_S
        for late in [key for key, one in self._requests.items() if one[0] < horizon]:
            del self._requests[late]
        for unused in [key for key, one in self._tickets.items() if one[0] < horizon]:
            del self._tickets[unused]
