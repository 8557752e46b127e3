"""Requests and their tickets: a job begins when both are here, in whichever order, from the same key.

Anybody can read a request and send a ticket for it, which opens nothing: so tickets are kept by their authors.
"""

from __future__ import annotations

import time
from typing import Generic, TypeVar

from nodewire.core.bounded_dict import BoundedDict

MAX_WAITING = 1_024
"""Requests without ticket, and tickets without request. The newest are kept: tickets are sent again and again."""
MAX_SEEN = 8_192
WAITING_S = 30.0

R = TypeVar("R")


class RequestMatcher(Generic[R]):
    """At one provider. Nothing of it outlives the process, and nothing waits longer than WAITING_S.

    A request R is whatever its owner needs of one that may be served. A ticket is its JSON text: a document of empty
    objects is 25 times as long in memory.
    """

    def __init__(self) -> None:
        self._requests = BoundedDict[str, tuple[float, str, R]](MAX_WAITING)
        """By id: when it came, from which key."""
        self._tickets = BoundedDict[tuple[str, str], tuple[float, str]](MAX_WAITING)
        """By request and author."""
        self._seen = BoundedDict[str, None](MAX_SEEN)

    def is_new(self, id_: str) -> bool:
        """Whether this event was not seen before; from now on it was."""
        if id_ in self._seen:
            return False
        self._seen[id_] = None
        return True

    def add_request(self, id_: str, customer: str, request: R) -> tuple[R, str] | None:
        """The request with its ticket, if that is here."""
        self._requests[id_] = time.monotonic(), customer, request
        return self._match(id_)

    def add_ticket(self, id_: str, author: str, text: str) -> tuple[R, str] | None:
        """The ticket with the request `id_`, if that is here. The first of an author's is the one that counts."""
        self._tickets.setdefault((id_, author), (time.monotonic(), text))
        return self._match(id_)

    def _match(self, id_: str) -> tuple[R, str] | None:
        if id_ not in self._requests:
            return None
        _, customer, request = self._requests[id_]
        if (id_, customer) not in self._tickets:
            return None
        del self._requests[id_]
        return request, self._tickets.pop((id_, customer))[1]

    def forget_old(self) -> None:
        """Drop what has waited too long."""
        horizon = time.monotonic() - WAITING_S
        while self._requests and next(iter(self._requests.values()))[0] < horizon:
            self._requests.popitem(last=False)
        while self._tickets and next(iter(self._tickets.values()))[0] < horizon:
            self._tickets.popitem(last=False)
