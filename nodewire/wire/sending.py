"""How a job's frames get to their consumers: one at a time, as their windows allow, and again to who lacks them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from nodewire.errors import LinkLost, NodewireError, NotFound
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.plan import tensor_key
from nodewire.wire import frames
from nodewire.wire.edges import Outgoing, Parcel, Tape, Window
from nodewire.wire.frames import FRAME_COST_BYTES
from nodewire.wire.link import Link


class Job(Protocol):
    """The mailbox as its sender sees it."""

    def check(self) -> None:
        """Raises what ended the job."""

    def fail(self, error: NodewireError) -> None: ...

    def expect(self, peer: str, error: NodewireError) -> None:
        """Fail unless `peer` is heard of in time."""

    def deliver_here(self, frame: Frame[Array], cost: int) -> None:
        """To a consumer on this node."""


class Exchange(Protocol):
    """The node as a sender sees it."""

    public: str

    async def reach(self, peer: str) -> Link:
        """The open link to `peer`, waited for a while. Raises LinkLost."""

    def open_link(self, peer: str) -> Link | None: ...

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...


class Sender:
    """With `handover` a consumer that is out of reach is waited for, or for who replaces it."""

    def __init__(self, job: Job, exchange: Exchange, request: str, tape: Tape | None, *, handover: bool) -> None:
        self._job = job
        self._exchange = exchange
        self._request = request
        self._tape = tape
        self._handover = handover

    def parcel(self, outgoing: Outgoing, attempt: int, frame: Frame[Array]) -> Parcel:
        """The frame as it goes out. Raises BadFrame, TooLarge."""
        key = tensor_key(self._request, frame.edge, attempt, frame.seq)
        header = frames.data_header(
            self._request, frame.edge, attempt, frame.seq, key, frame.tensors, frame.meta, outgoing.limit
        )
        return Parcel(frame, frames.pack_header(header), header.cost)

    async def send(self, outgoing: Outgoing, parcel: Parcel) -> None:
        """Return when every consumer that the edge then has been given the frame, or has said that it needs it not.

        Raises:
            LinkLost, NotFound, NodewireError: as JobMailbox.put.
        """
        seq = parcel.frame.seq
        while lacking := [window for window in outgoing.windows.values() if window.lacks(seq)]:
            sends = [self._advance(outgoing, window, seq, parcel) for window in lacking]
            if len(sends) == 1:
                await sends[0]
                continue
            for outcome in await asyncio.gather(*sends, return_exceptions=True):
                if outcome is not None:
                    raise outcome

    def catch_up(self, outgoing: Outgoing, window: Window) -> None:
        """Send a consumer in the background what it lacks of what has been put."""
        self._exchange.run(self._catch_up(outgoing, window))

    async def _catch_up(self, outgoing: Outgoing, window: Window) -> None:
        try:
            await self._advance(outgoing, window, outgoing.next_seq - 1)
        except NodewireError as error:
            self._job.fail(error)

    async def _advance(self, outgoing: Outgoing, window: Window, last: int, live: Parcel | None = None) -> None:
        """Send one consumer what it lacks up to the frame `last`: `live`, the tape's where it is another."""
        async with window.turn:
            while not window.left:
                self._job.check()
                if window.next_seq is None:
                    await window.change()
                    continue
                if window.next_seq > last:
                    return
                is_live = live is not None and live.frame.seq == window.next_seq
                parcel = live if live is not None and is_live else self._again(outgoing, window)
                if window.sent + parcel.cost > window.limit:
                    await window.change()
                else:
                    await self._hand(window, parcel)

    def _again(self, outgoing: Outgoing, window: Window) -> Parcel:
        """The consumer's next frame, from the tape. Raises NotFound."""
        assert window.next_seq is not None
        if window.kept is not None and window.kept.frame.seq == window.next_seq:
            return window.kept
        found = next(window.replay, None) if window.replay is not None else None
        if found is None and self._tape is not None:  # the tape may have grown since that reading of it ended
            window.replay = self._tape.read(self._request, outgoing.edge, window.next_seq)
            found = next(window.replay, None)
        if found is None or found[1].seq != window.next_seq:
            raise NotFound("tape", f"{outgoing.edge} has not been kept from {window.next_seq} on")
        window.kept = self.parcel(outgoing, *found)
        return window.kept

    async def _hand(self, window: Window, parcel: Parcel) -> None:
        """Pass a frame to its consumer, or find that this cannot be done now."""
        consumer, frame = window.consumer, parcel.frame
        link = self._exchange.open_link(consumer)
        if link is None and consumer != self._exchange.public:
            if self._handover:
                self._job.expect(consumer, LinkLost(consumer, "no link"))
                await window.change()
                return
            link = await self._exchange.reach(consumer)
            self._job.check()
        window.sent += parcel.cost
        window.next_seq = frame.seq + 1
        window.kept = None
        if link is None:
            self._job.deliver_here(frame, parcel.cost)
            return
        try:
            window.sending = link.send(parcel.packed, parcel.cost - FRAME_COST_BYTES, frame.tensors)
            if window.sending is not None:
                await window.sending
        except LinkLost:
            if not self._handover:
                raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not window.left or (task is not None and task.cancelling()):
                raise
        finally:
            window.sending = None
