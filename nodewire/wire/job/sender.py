"""How a job's frames get to their consumers: one at a time, as their windows allow, and again if they are lacking."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from nodewire.errors import LinkLost, NodewireError, NotFound
from nodewire.protocol.job.plan import tensor_key
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.wire.framing import frames

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from nodewire.wire.job.edge_window import OutgoingEdge, Tape, Window
    from nodewire.wire.link.link import Link, OutgoingFrame

log = logging.getLogger("nodewire.wire")


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


@dataclass(slots=True)
class Parcel:
    """A frame ready to be sent."""

    frame: Frame[Array]
    packed: bytes
    nbytes: int
    """Of its tensors."""
    cost: int

    def copied(self) -> Parcel:
        """The same in memory of its own."""
        frame = Frame(self.frame.edge, self.frame.seq, tuple(a.copied() for a in self.frame.tensors), self.frame.meta)
        return Parcel(frame, self.packed, self.nbytes, self.cost)


class _Turns:
    """Whoever sends to the consumer of an edge, one at a time, and what that is waiting for."""

    def __init__(self, window: Window) -> None:
        self.one = asyncio.Lock()
        self.sending: OutgoingFrame | None = None
        self.replay: Iterator[tuple[int, Frame[Array]]] | None = None
        self.kept: Parcel | None = None
        """From the replay, not sent yet."""
        self.owed: dict[int, Parcel] = {}
        """By seq: of puts that were cancelled before it was their turn."""
        self._window = window
        self._changed = asyncio.Event()
        window.changed = self.wake

    def wake(self) -> None:
        if self._window.next_seq is None:
            self.replay = self.kept = None
        for seq in [seq for seq in self.owed if not self._window.lacks(seq)]:
            del self.owed[seq]
        self._changed.set()

    async def sent(self) -> None:
        """Wait until what goes to the consumer has gone; with cancellation it goes from a copy, before all else.

        Raises LinkLost.
        """
        sending = self.sending
        if sending is None:
            return
        try:
            await asyncio.shield(sending.done)
        except asyncio.CancelledError:
            sending.copy()
            raise
        finally:
            if sending.done.done():
                self.sending = None

    async def change(self) -> None:
        """Wait until the window has changed, or the job."""
        self._changed.clear()
        await self._changed.wait()


class Sender:
    """With `relinks` a consumer that is out of reach is waited for."""

    def __init__(self, job: Job, exchange: Exchange, request: str, tape: Tape | None, *, relinks: bool) -> None:
        self._job = job
        self._exchange = exchange
        self._request = request
        self._tape = tape
        self._relinks = relinks
        self._turns: dict[Window, _Turns] = {}

    def wake(self) -> None:
        """The job, or what its consumers can be reached by, has changed."""
        for turns in list(self._turns.values()):
            turns.wake()

    def parcel(self, outgoing: OutgoingEdge, frame: Frame[Array]) -> Parcel:
        """The frame as it goes out. Raises BadFrame, TooLarge."""
        key = tensor_key(self._request, frame.edge, 0, frame.seq)
        header = frames.data_header(
            self._request, frame.edge, 0, frame.seq, key, frame.tensors, frame.meta, outgoing.limit
        )
        return Parcel(frame, frames.pack_header(header), header.nbytes, header.cost)

    async def send(self, outgoing: OutgoingEdge, parcel: Parcel) -> None:
        """Return when the consumer of the edge has been given the frame, or has said that it has it.

        With cancellation the frame is sent all the same, from a copy, before those that are put later.

        Raises:
            LinkLost, NotFound, NodewireError: as JobMailbox.put.

        """
        window, seq = outgoing.window, parcel.frame.seq
        if self._send_at_once(window, parcel):
            return
        try:
            while window.lacks(seq):
                await self._advance(outgoing, seq, parcel)
        except asyncio.CancelledError:
            self._owe(outgoing, parcel)
            raise

    def _send_at_once(self, window: Window, parcel: Parcel) -> bool:
        """Whether nothing is in the way, as is mostly so, and the frame has gone."""
        turns, seq = self._turns.get(window), parcel.frame.seq
        if window.next_seq != seq or not window.fits(parcel.cost) or (turns is not None and turns.one.locked()):
            return False
        link = self._exchange.open_link(window.consumer)
        if link is None or not link.send_at_once(parcel.packed, parcel.nbytes, parcel.frame.tensors):
            return False
        window.send(seq, parcel.cost)
        return True

    def _owe(self, outgoing: OutgoingEdge, parcel: Parcel) -> None:
        """Send a frame whose put was cancelled in the background, if the consumer was not given it."""
        if outgoing.window.lacks(parcel.frame.seq):
            self._turns_of(outgoing.window).owed[parcel.frame.seq] = parcel.copied()
            self.catch_up(outgoing)

    def catch_up(self, outgoing: OutgoingEdge) -> None:
        """Send the consumer in the background what it lacks of what has been put."""
        self._exchange.run(self._catch_up(outgoing))

    async def _catch_up(self, outgoing: OutgoingEdge) -> None:
        try:
            await self._advance(outgoing, outgoing.next_seq - 1)
        except NodewireError as error:
            self._job.fail(error)

    async def _advance(self, outgoing: OutgoingEdge, last: int, live: Parcel | None = None) -> None:
        """Send the consumer what it lacks up to the frame `last`: `live`, the tape's where it is another."""
        window = outgoing.window
        turns = self._turns_of(window)
        async with turns.one:
            with suppress(LinkLost):  # of a put that was cancelled; what is lost with it is asked for again
                await turns.sent()
            while True:
                self._job.check()
                if window.next_seq is None:
                    await turns.change()
                    continue
                if window.next_seq > last:
                    return
                is_live = live is not None and live.frame.seq == window.next_seq
                parcel = live if live is not None and is_live else self._again(outgoing, turns)
                if window.fits(parcel.cost):
                    await self._hand(window, turns, parcel)
                else:
                    await turns.change()
        self._turns.pop(window, None)

    def _turns_of(self, window: Window) -> _Turns:
        turns = self._turns.get(window)
        if turns is None:
            turns = self._turns[window] = _Turns(window)
        return turns

    def _again(self, outgoing: OutgoingEdge, turns: _Turns) -> Parcel:
        """The consumer's next frame, owed to it or from the tape. Raises NotFound."""
        window = outgoing.window
        assert window.next_seq is not None
        if (owed := turns.owed.get(window.next_seq)) is not None:
            return owed
        if turns.kept is not None and turns.kept.frame.seq == window.next_seq:
            return turns.kept
        found = next(turns.replay, None) if turns.replay is not None else None
        if (found is None or found[1].seq < window.next_seq) and self._tape is not None:
            # That reading ended before the tape had grown, or was overtaken by what was sent at once.
            turns.replay = self._tape.read(self._request, outgoing.edge, window.next_seq)
            found = next(turns.replay, None)
        if found is None or found[1].seq != window.next_seq:
            raise NotFound("tape", f"{outgoing.edge} has not been kept from {window.next_seq} on")
        turns.kept = self.parcel(outgoing, found[1])
        return turns.kept

    async def _hand(self, window: Window, turns: _Turns, parcel: Parcel) -> None:
        """Pass a frame to its consumer, or find that this cannot be done now."""
        consumer, frame = window.consumer, parcel.frame
        link = self._exchange.open_link(consumer)
        if link is None and consumer != self._exchange.public:
            if self._relinks:
                self._job.expect(consumer, LinkLost(consumer, "no link"))
                await turns.change()
                return
            link = await self._exchange.reach(consumer)
            self._job.check()
        window.send(frame.seq, parcel.cost)
        turns.kept = None
        turns.owed.pop(frame.seq, None)
        if link is None:
            self._job.deliver_here(frame, parcel.cost)
            return
        try:
            turns.sending = link.send(parcel.packed, parcel.nbytes, frame.tensors)
            await turns.sent()
        except LinkLost:
            if not self._relinks:
                raise
