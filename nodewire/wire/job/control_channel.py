"""What two members of a job tell each other: in order and once, also when the link between them breaks in between.

Documents of a job that outlives its links are numbered from 1 by `n`. They are kept, and sent again on the next link;
who has read a number does not read it again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodewire.errors import LinkLost
from nodewire.wire.framing import frames

if TYPE_CHECKING:
    from nodewire.wire.framing.frames import Document
    from nodewire.wire.link.link import Link

MAX_KEPT = 256
"""As many as may wait unread at the other end."""


@dataclass(slots=True)
class ControlChannel:
    """One other member: what was said to it, and how much of what it said has been read."""

    _count: int = 0
    _heard: int = 0
    _kept: deque[Document] = field(default_factory=lambda: deque(maxlen=MAX_KEPT))
    _link: Link | None = None
    _sent: int = 0
    """Number of the last that went over `_link`."""

    def add(self, document: Document) -> None:
        """To be said by the next `send`. Raises BadInput, TooLarge: no canonical form, or over 64 KiB."""
        numbered = {**document, "n": self._count + 1}
        frames.control(numbered)
        self._count += 1
        self._kept.append(numbered)

    def send(self, link: Link) -> None:
        """Send what has not gone over `link`; if that ends, the rest goes over the next."""
        if link is not self._link:
            self._link, self._sent = link, 0
        try:
            for document in self._kept:
                if document["n"] > self._sent:
                    link.send_control(document)
                    self._sent = document["n"]
        except LinkLost:
            self._link = None

    def is_news(self, document: Document) -> bool:
        """Whether a document that came has not been read before; what has no number has not."""
        number = document.get("n")
        if type(number) is not int:
            return True
        if number <= self._heard:
            return False
        self._heard = number
        return True
