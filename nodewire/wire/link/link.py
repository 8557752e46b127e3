"""A link: one secured channel between two nodes that have proven their Nostr keys to each other.

    dialler                                       listener
       |--- TCP, TLS 1.3 ---------------------------->|
       | checks the certificate                       |  reads at most 4 KB until
       |--- CONTROL {"t": "auth", "event": ...} ----->|  it has checked the event
       |<-- CONTROL {"t": "welcome"} -----------------|  or {"t": "refuse", "error": ...}
       |<== filler, heartbeats, frames of jobs ======>|

Urgent frames (control, credit, heartbeats) go before queued tensors, whose segments take turns, job by job.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, cast

from nodewire.core.suspend_aware_timeout import timeout_awake
from nodewire.errors import BadFrame, BadPeer, LinkLost, NodewireError, TimedOut
from nodewire.net import host_port
from nodewire.net.connection_limits import origin_of
from nodewire.net.rate_limits import Allowance
from nodewire.wire.framing import frames
from nodewire.wire.framing.decoder import Decoder, FrameMemory
from nodewire.wire.link.heartbeat import Pulse
from nodewire.wire.link.outbox import Outbox, Transfer
from nodewire.wire.transport import identity
from nodewire.wire.transport import tcp as transport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.nostr.keys import Keys
    from nodewire.protocol.tensors.frame import Array
    from nodewire.wire.framing.frames import Buffer, DataHeader, Document
    from nodewire.wire.transport.identity import Identity
    from nodewire.wire.transport.tcp_info import TcpInfo

UNPROVEN_BYTES = 4_096
WARM_UP_BYTES = 100_000
MAX_URGENT_BYTES = 2**20
STRAY_BYTES_PER_S, MAX_STRAY_BYTES = 4 * 2**20, 16 * 2**20
"""What a peer may send that no job expects, at the prices of `rate_limits.stray_bytes`: saved up to the latter."""
_TURNS_PER_WRITE = 8  # segments written before other links get the event loop


Rung = Literal["address", "punch", "splice"]
"""How a link came about: an address was dialled, both ends punched holes, or a splice joined them."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a node waits, in seconds."""

    handshake_s: float = 5.0
    """For a connection to prove itself."""
    dial_s: float = 10.0
    """For any of a peer's addresses to answer."""
    stagger_s: float = 0.25
    """Before the next address is tried beside the last."""
    again_s: float = 1.0
    """Before all addresses are tried once more beside that: a kernel that has lost its first packets waits longer."""
    heartbeat_s: float = 0.1
    """Between heartbeats while a job is open on the link: TCP's congestion window does not collapse."""
    silence_s: float = 1.0
    """Until a silent peer is given up while a job is open."""
    idle_heartbeat_s: float = 5.0
    idle_silence_s: float = 20.0
    early_s: float = 10.0
    """That frames are kept for a job which is not open here yet."""


class Owner(Protocol):
    """What a link calls once it is open. Methods may raise a NodewireError, which ends the link."""

    def data_begins(self, link: Link, header: DataHeader) -> FrameMemory: ...

    def data_ends(self, link: Link, header: DataHeader, memory: memoryview) -> None: ...

    def control(self, link: Link, document: Document) -> None: ...

    def credit(self, link: Link, job: str, edge: str, attempt: int, limit: int) -> None: ...

    def lost(self, link: Link, error: NodewireError) -> None: ...


class Link(asyncio.BufferedProtocol):
    """Made by a Node. `peer` is the other's public key once `ready` is done; `error` says why a link ended."""

    def __init__(
        self, owner: Owner, keys: Keys, shown: Identity, patience: Patience, unix_s: float, expected: str | None = None
    ) -> None:
        """`expected` is whom we dial; without it somebody dials us, and sees the identity `shown`."""
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._keys = keys
        self._shown = shown
        self._patience = patience
        self._unix_s = unix_s - self._loop.time()
        self.dialled = expected is not None
        self.rung: Rung = "address"
        self.peer = expected or ""
        self.ready: asyncio.Future[str] = self._loop.create_future()
        """The peer's key: for the dialler when it is welcome, for the listener when the peer has proven itself."""
        self.ready.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.error: NodewireError | None = None
        self.over = asyncio.Event()
        """Set once the link has ended."""
        self.origin = ""
        """Where it comes from, as `nodewire.net.connection_limits` counts; empty where there is no address."""
        self.bytes_in = self.bytes_out = 0
        self._state: Literal["new", "proven", "open", "ended"] = "new"
        self._decoder = Decoder(self, None if self.dialled else UNPROVEN_BYTES)
        self._channel: asyncio.Transport | None = None
        self._bound = b""
        self._writable = True
        self._outbox = Outbox()
        self.allowance = Allowance(STRAY_BYTES_PER_S, MAX_STRAY_BYTES, self._loop.time)
        self.is_at_fault = False
        """This end has ended it for what the peer sent."""
        self._is_reading = False
        self._jobs: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._data_at = self._warm_at = 0.0
        self._pulse = Pulse()
        self._alive = asyncio.Event()

    # What others use.

    @property
    def is_open(self) -> bool:
        return self._state == "open"

    @property
    def rtt_us(self) -> int | None:
        """The shortest of the last 16 round trips of heartbeats, in microseconds; None before the first."""
        return self._pulse.rtt_us

    @property
    def transport(self) -> str:
        """What carries it: "tls", or "shm" between processes of one host; empty before it has a channel."""
        return transport.name(self._channel) if self._channel is not None else ""

    @property
    def congestion(self) -> str:
        """The kernel's congestion control for this link; empty where there is none."""
        return transport.congestion(self._channel) if self._channel is not None else ""

    @property
    def round_trips_us(self) -> list[int]:
        """The last 16, in microseconds, the newest last."""
        return self._pulse.round_trips_us

    @property
    def tcp(self) -> TcpInfo | None:
        """What the kernel knows of the connection; None where there is none, or it does not say."""
        return transport.tcp(self._channel) if self._channel is not None else None

    @property
    def address(self) -> str:
        """The peer's end as the kernel sees it; empty where there is none."""
        return transport.peer_address(self._channel) if self._channel is not None else ""

    @property
    def has_jobs(self) -> bool:
        return bool(self._jobs)

    def send_control(self, document: Document) -> None:
        """Send a small document before any queued tensor.

        Raises:
            BadInput, TooLarge: it has no canonical form or is over 64 KiB.
            LinkLost: the link has ended.

        """
        self._check_open()
        self._send_urgent(frames.control(document))

    def send_credit(self, job: str, edge: str, limit: int) -> None:
        self._check_open()
        self._send_urgent(frames.credit(job, edge, 0, limit))

    def send(self, packed: bytes, nbytes: int, arrays: Sequence[Array]) -> OutgoingFrame | None:
        """Send a frame of `nbytes` under a header packed by frames.pack_header.

        The arrays' memory may be used again when this returns None, else when the result is done.

        Raises:
            LinkLost: the link has ended.

        """
        self._check_open()
        transfer = Transfer(packed, nbytes, arrays)
        self._outbox.add(transfer)
        self._pump()
        if transfer.is_finished or self.error:
            self._check_open()
            return None
        return OutgoingFrame(self, transfer)

    def send_at_once(self, packed: bytes, nbytes: int, arrays: Sequence[Array]) -> bool:
        """`send` for a frame of one segment, if nothing is before it: the arrays' memory is free then."""
        if nbytes > frames.SEGMENT_BYTES or not (self.is_open and self._writable and self._outbox.is_empty):
            return False
        self._write(frames.whole(packed, nbytes, arrays))
        if not self._writable:
            self._copy_pending()
        return True

    def attend(self, job: str) -> None:
        """`job` is open on this link: heartbeats are frequent, silence ends it soon, and the path is made hot."""
        if self.is_open and not self._jobs:
            self._pulse.heard_s = self._loop.time()
            self._warm_up()
            self._tick_in(0)
        self._jobs.add(job)

    def leave(self, job: str) -> None:
        self._jobs.discard(job)

    def discard(self, job: str) -> None:
        """Free what a job's unfinished frames hold."""
        self._decoder.discard(job)

    async def is_alive(self) -> bool:
        """Whether the peer still answers; one that does not loses the link."""
        if self.is_open:
            self._alive.clear()
            self._ping()
            try:
                async with timeout_awake(self._patience.silence_s):
                    await self._alive.wait()
            except TimeoutError:
                self.abort(self._silence("did not answer"))
        return self.is_open

    def welcome(self) -> None:
        """Let a peer in that has proven itself."""
        assert self._state == "proven"
        self._send_urgent(frames.control({"t": "welcome"}))
        if self.error is None:
            self._open()

    def refuse(self, error: NodewireError) -> None:
        """Turn away a peer that has proven itself."""
        self._say_and_close("refuse", error)

    def end(self, error: NodewireError) -> None:
        """Tell the peer why, and close."""
        self._say_and_close("bye", error)

    def abort(self, error: NodewireError) -> None:
        """Close without a word."""
        if self._channel is not None:
            self._channel.abort()
        self._ended(error)

    # What the event loop calls.

    def connection_made(self, channel: asyncio.BaseTransport) -> None:
        if self._state == "ended":
            cast("asyncio.Transport", channel).abort()
            return
        self._channel = cast("asyncio.Transport", channel)
        self.origin = origin_of(host_port.parse(address)[0]) if (address := self.address) else ""
        self._channel.set_write_buffer_limits(high=0)
        transport.tune(channel)
        try:
            self._bound = transport.bound(channel, self._shown)
            if self.dialled:
                self._bound = transport.check_listener(channel, self.peer, self._now_s())
                event = identity.auth(self._keys, self.peer, self._bound, self._now_s())
                self._send_urgent(frames.control({"t": "auth", "event": event.to_json()}))
        except NodewireError as error:
            self.abort(error)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._state == "ended":  # what the peer sent before it learned so
            return
        self.bytes_in += nbytes
        self._pulse.heard_s = self._loop.time()
        self._alive.set()
        self._is_reading = True
        try:
            self._decoder.buffer_updated(nbytes)
        except NodewireError as error:
            self.is_at_fault = True
            self.end(error)
        finally:
            self._is_reading = False
        if not self._outbox.is_empty:
            self._pump()  # all answers at once: a record for each would cost more than what was asked

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._outbox.written()
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended(LinkLost(self.peer or "peer", str(exc)[:200] if exc else "closed by the peer"))

    # What the decoder calls.

    def stray(self, nbytes: int) -> None:
        if self._state != "ended":
            self.allowance.spend(nbytes)

    def data_begins(self, header: DataHeader) -> FrameMemory:
        if not self._is_heard():
            return FrameMemory(None, is_expected=True)
        was_busy = self._is_busy()
        self._data_at = self._loop.time()
        if not was_busy:
            self._tick_in(self._patience.heartbeat_s)
        return self._owner.data_begins(self, header)

    def data_ends(self, header: DataHeader, buffer: memoryview) -> None:
        if self._state == "open":
            self._owner.data_ends(self, header, buffer)

    def control(self, document: Document) -> None:
        kind = document["t"]
        match self._state, kind:
            case "open", "bye":
                reported = frames.reported(document)
                self.abort(LinkLost(self.peer, _told(self.peer, reported)))
            case "open", kind if kind not in ("auth", "welcome", "refuse"):
                self._owner.control(self, document)
            case "new", "auth" if not self.dialled:
                self.peer = identity.check_auth(document.get("event"), self._keys.public, self._bound, self._now_s())
                self._state = "proven"
                if not self.ready.done():
                    self.ready.set_result(self.peer)
            case "new", "welcome" if self.dialled:
                self._open()
                if not self.ready.done():
                    self.ready.set_result(self.peer)
            case "new", "refuse" | "bye":
                self.abort(frames.reported(document))
            case "ended", _:
                pass
            case _:
                raise BadFrame("t", f"{str(kind)[:20]!r} does not belong here")

    def credit(self, job: str, edge: str, attempt: int, limit: int) -> None:
        if self._is_heard():
            self._owner.credit(self, job, edge, attempt, limit)

    def ping(self, tag: int) -> None:
        if self._is_heard():
            self._send_urgent(frames.pong(tag))

    def pong(self, tag: int) -> None:
        if self._is_heard():
            self._pulse.pong(tag, time.perf_counter())

    # Inside.

    def _now_s(self) -> float:
        return self._unix_s + self._loop.time()

    def _open(self) -> None:
        self._state = "open"
        self._decoder.unlimited()
        self._pulse.heard_s = self._loop.time()
        self._warm_up()
        self._tick_in(0)

    def _warm_up(self) -> None:
        """Open the congestion window, which collapses on a link that was idle, before a job's first frame needs it."""
        now = self._loop.time()
        if now - max(self._warm_at, self._data_at) > self._patience.heartbeat_s:
            self._warm_at = now
            self._send_urgent(frames.filler(WARM_UP_BYTES))

    def _is_heard(self) -> bool:
        """Whether what comes counts: not once the link has ended, though more of the same read may follow.

        Raises BadPeer before it is open.
        """
        if self._state in ("new", "proven"):
            raise BadPeer("channel", "used before it was open")
        return self._state == "open"

    def _check_open(self) -> None:
        if self.error is not None:
            raise self.error if isinstance(self.error, LinkLost) else LinkLost(self.peer, str(self.error))
        assert self._state == "open"

    def _send_urgent(self, frame: bytes) -> None:
        self._outbox.hurry(frame)
        if self._outbox.urgent_bytes > MAX_URGENT_BYTES:
            self.abort(LinkLost(self.peer, "does not read"))
        self._pump()

    def _pump(self) -> None:
        """Write what the channel takes: all that is urgent, then segments of the frames under way in turn."""
        if self._state == "ended" or self._channel is None or self._is_reading:
            return
        for _ in range(_TURNS_PER_WRITE):
            if not self._writable:
                return
            buffers = self._outbox.next_write()
            if buffers is None:
                return
            self._write(buffers)
            if self._writable:
                self._outbox.written()
        self._loop.call_soon(self._pump)

    def _write(self, buffers: list[Buffer]) -> None:
        assert self._channel is not None
        for buffer in buffers:
            self.bytes_out += len(buffer)
        self._channel.writelines(buffers)

    def copy(self, transfer: Transfer) -> None:
        """Let go of a frame's memory: it is sent all the same."""
        transfer.copy_rest()
        self._copy_pending()

    def _copy_pending(self) -> None:
        if isinstance(self._channel, transport.Borrower):
            self._channel.copy_pending()

    def _is_busy(self) -> bool:
        return bool(self._jobs) or self._loop.time() - self._data_at < self._patience.silence_s

    def _tick_in(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = self._loop.time() + delay_s
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        now, patience = self._loop.time(), self._patience
        silence_s = patience.silence_s if self._jobs else patience.idle_silence_s
        if now - self._due > patience.silence_s / 2:
            self._pulse.heard_s = now  # it was this process that stood still; what the peer sent is yet to be read
        if self._pulse.silent_s(now) > silence_s:
            self.abort(self._silence(f"silent for {silence_s:g} s"))
            return
        self._ping()
        if self._state == "open":
            self._tick_in(patience.heartbeat_s if self._is_busy() else patience.idle_heartbeat_s)

    def _silence(self, what: str) -> LinkLost | TimedOut:
        """TimedOut if the peer's machine has acknowledged all the same: the process hangs, and it is not the path."""
        tcp = self.tcp if self.rung != "splice" else None  # whose machine the connection leads to
        acknowledged = tcp is not None and tcp.acked_ms < self._patience.silence_s * 500
        if acknowledged or self.transport == "shm":
            return TimedOut(self.peer, f"{what}, though its machine answers")
        return LinkLost(self.peer, what)

    def _ping(self) -> None:
        # uvloop's own time has a millisecond's resolution.
        self._send_urgent(frames.ping(self._pulse.ping(time.perf_counter())))

    def _say_and_close(self, kind: str, error: NodewireError) -> None:
        if self._state == "ended":
            return
        if self._channel is not None:
            # Half a tensor may be under way, but never half a segment: the peer still finds its next frame.
            said = (self._outbox.next_write() or []) if self._outbox.urgent_bytes else []
            self._write([*said, frames.control({"t": kind, "error": error.as_dict()})])
            self._channel.close()
        self._ended(error)

    def _ended(self, error: NodewireError) -> None:
        if self._state == "ended":
            return
        self._state = "ended"
        self.error = error
        self._alive.set()
        self.over.set()
        if self._timer is not None:
            self._timer.cancel()
        if not self.ready.done():
            self.ready.set_exception(error)
        lost = error if isinstance(error, LinkLost) else LinkLost(self.peer, str(error))
        self._outbox.fail(lost)
        self._owner.lost(self, error)


class OutgoingFrame:
    """A frame that a link has begun or is going to send. `done` fails with LinkLost, and is cancelled by `withdraw`."""

    def __init__(self, link: Link, transfer: Transfer) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._link, self._transfer = link, transfer
        transfer.done = self._settle

    def copy(self) -> None:
        """Send it from a copy, whoever waits for it: its memory is free."""
        if not self.done.done():
            self._link.copy(self._transfer)

    def _settle(self, error: LinkLost | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


def _told(peer: str, reported: NodewireError) -> str:
    """Why a peer ended the link, without what is said of every link that is lost: so, and whose."""
    reason = (reported.reason if reported.field == peer else str(reported)) or reported.code
    return reason if reported.code == LinkLost.code else f"{reported.code}: {reason}"
