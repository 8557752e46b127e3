"""Documents that a node shows to whoever it has linked with, part by part: what it holds, say.

{"t": "ask", "what": name, "at": byte}
{"t": "show", "what": name, "at": byte, "of": length, "part": bytes}      length 0: there is none
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nodewire.errors import BadFrame, LinkLost, NotFound, TimedOut, TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodewire.wire.framing.frames import Document
    from nodewire.wire.link.link import Link

ASK, SHOW = "ask", "show"
PART_BYTES = 32_768
_PATIENCE_S = 5.0
"""For one part."""
MAX_NAME = 64


class InventoryExchange:
    """Gives `handle` what a node's `on_control` is given. `documents` by name are what is shown here."""

    def __init__(
        self, link_to: Callable[[str], Link | None], documents: Mapping[str, bytes], patience_s: float = _PATIENCE_S
    ) -> None:
        self._link_to, self._documents, self._patience_s = link_to, documents, patience_s
        self._awaited: dict[tuple[str, str, int], asyncio.Future[tuple[int, bytes]]] = {}

    async def ask(self, link: Link, what: str, max_bytes: int) -> bytes:
        """A document of the peer's.

        Raises:
            NotFound: it has none of this name.
            TooLarge: it is longer than `max_bytes`.
            BadFrame: its parts contradict each other.
            TimedOut, LinkLost: it does not answer.

        """
        data = bytearray()
        while True:
            of, part = await self._part(link, what, len(data))
            if not of:
                raise NotFound(what, "the peer has none")
            if of > max_bytes:
                raise TooLarge(what, f"{of} bytes, at most {max_bytes}")
            if len(part) != min(PART_BYTES, of - len(data)):
                raise BadFrame(what, "parts that do not make one document")
            data += part
            if len(data) == of:
                return bytes(data)

    def handle(self, peer: str, document: Document) -> bool:
        """Whether a document asks for one that is shown here, or is a part of one that was asked for.

        Raises:
            BadFrame: it is malformed: the link's end.

        """
        if document["t"] not in (ASK, SHOW):
            return False
        what, at = document.get("what"), document.get("at")
        if not isinstance(what, str) or len(what) > MAX_NAME or type(at) is not int or at < 0:
            raise BadFrame("what", "no name and place of a document")
        if document["t"] == ASK:
            shown = self._documents.get(what, b"")
            if (link := self._link_to(peer)) is not None:
                piece = shown[at : at + PART_BYTES]
                link.send_control({"t": SHOW, "what": what, "at": at, "of": len(shown), "part": piece})
            return True
        of, part = document.get("of"), document.get("part")
        if type(of) is not int or of < 0 or not isinstance(part, bytes):
            raise BadFrame("part", "no length and bytes of a document")
        if (waiting := self._awaited.get((peer, what, at))) is not None and not waiting.done():
            waiting.set_result((of, part))
        return True

    async def _part(self, link: Link, what: str, at: int) -> tuple[int, bytes]:
        key = link.peer, what, at
        waiting = self._awaited.get(key)
        if waiting is None or waiting.done():
            waiting = self._awaited[key] = asyncio.get_running_loop().create_future()
            link.send_control({"t": ASK, "what": what, "at": at})
        over = asyncio.ensure_future(link.over.wait())
        try:
            async with asyncio.timeout(self._patience_s):
                await asyncio.wait((waiting, over), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise TimedOut(link.peer, "does not say what it holds") from None
        finally:
            over.cancel()
            if self._awaited.get(key) is waiting:  # else it is asked for anew already
                del self._awaited[key]
        if not waiting.done():
            raise link.error or LinkLost(link.peer, "left")
        return waiting.result()
