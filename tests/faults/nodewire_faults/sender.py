"""A mailbox whose owner computes honestly and sends as it should not: too late, twice, or never."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from nodewire.protocol.tensors.frame import Array, Frame
from nodewire_faults.strike import say_frame

LATE_S = 20.0
"""By how much every frame is."""


class Sending:
    """`how`: `late`, `twice` or `silent`, on these edges from frame `after` on. `mailbox` is the wire's own."""

    def __init__(self, mailbox: Any, request: str, how: str, edges: Collection[str], after: int) -> None:
        self._mailbox, self._request, self._how, self._edges, self._after = mailbox, request, how, edges, after
        self.get, self.deliver_to = mailbox.get, mailbox.deliver_to

    async def put(self, frame: Frame[Array]) -> None:
        if frame.edge not in self._edges or frame.seq < self._after:
            await self._mailbox.put(frame)
            return
        say_frame(self._request, frame)
        if self._how == "late":
            await asyncio.sleep(LATE_S)
            await self._mailbox.put(frame)
        elif self._how == "twice":
            await self._mailbox.put(frame)
            await self._again(frame)

    async def _again(self, frame: Frame[Array]) -> None:
        """On the wire as it went, with the number that it had."""
        sender, outgoing = self._mailbox._sender, self._mailbox._edges.outgoing[frame.edge]
        outgoing.window.next_seq = frame.seq
        await sender.send(outgoing, sender.parcel(outgoing, frame))
