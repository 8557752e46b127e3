"""A question about a job that one node asks another, and the answer to it. nips/22-flow-and-control.md.

Both are control documents.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nodewire.core.suspend_aware_timeout import timeout_awake
from nodewire.errors import NodewireError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from nodewire.wire.framing.frames import Document
    from nodewire.wire.link.link import Link

T = TypeVar("T")


class Query(Generic[T]):
    """One node's part in one sort of question, as asker and as asked."""

    def __init__(
        self,
        ask: str,
        answer: str,
        say: Callable[[str, str], Mapping[str, Any] | None],
        read: Callable[[Document], T],
    ) -> None:
        """`ask` and `answer` are the documents' types; both name the `job`.

        `say` is what the answer to a peer about a job has besides, None for no answer; `read` takes it out of one,
        whatever that is.
        """
        self._ask, self._answer, self._say, self._read = ask, answer, say, read
        self._waiting: dict[tuple[str, str], set[asyncio.Future[T]]] = {}

    def linked(self, link: Link) -> None:
        """There is a new link to a peer: what it has not answered is asked again, for the question may be lost."""
        for peer, request in self._waiting:
            if peer == link.peer:
                link.send_control({"t": self._ask, "job": request})

    def handle(self, link: Link, document: Document) -> bool:
        """Whether a control document was about this; then it has been seen to."""
        name = document.get("job")
        if document["t"] not in (self._ask, self._answer) or not isinstance(name, str):
            return False
        if document["t"] == self._answer:
            for waiting in self._waiting.get((link.peer, name), ()):
                if not waiting.done():
                    waiting.set_result(self._read(document))
        elif (said := self._say(link.peer, name)) is not None:
            link.send_control({"t": self._answer, "job": name, **said})
        return True

    async def ask(self, reaching: Awaitable[Link], peer: str, request: str, patience_s: float) -> T | None:
        """What `peer` answers; None if it cannot be reached, or does not answer, in time.

        `reaching` becomes the link to it. Who asks at once with others has their answer, and a patience of its own.
        """
        waiting: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        others: set[asyncio.Future[T]] = set()
        try:
            async with timeout_awake(patience_s):
                link = await reaching
                others = self._waiting.setdefault((peer, request), others)
                others.add(waiting)
                link.send_control({"t": self._ask, "job": request})
                return await waiting
        except (NodewireError, TimeoutError):
            return None
        finally:
            others.discard(waiting)
            if not others and self._waiting.get((peer, request)) is others:
                del self._waiting[peer, request]
