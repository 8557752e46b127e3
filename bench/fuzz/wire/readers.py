"""What reads spoilt streams in `bench.fuzz.fuzz_wire`: the bare Decoder, and a Node with jobs, links and peers.

The Node is a real one with its real links. Its channels alone are made here: bytes that are put into them at once, in
place of sockets.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.fuzz.wire import plain_reader as plain
from bench.fuzz.wire import streams
from bench.fuzz.wire.plain_reader import Read
from bench.fuzz.wire.streams import BESIDE, CLOSED, JOB, OTHERS, PRODUCED
from nodewire.errors import NodewireError, NotFound
from nodewire.nostr.keys import Keys
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.wire import JobChannelSpec, JobMailbox, Link, LinkPolicy, Node, Patience, Route
from nodewire.wire.evidence.pull import Want
from nodewire.wire.framing import frames
from nodewire.wire.framing.decoder import Decoder, FrameMemory
from nodewire.wire.framing.headers import DataHeader
from nodewire.wire.link import link_manager
from nodewire.wire.transport import identity
from nodewire.wire.transport.identity import Identity
from nodewire.wire.transport.tcp import Arrival, Listener

STILL = Patience(
    handshake_s=60.0, heartbeat_s=3_600.0, silence_s=1e6, idle_heartbeat_s=3_600.0, idle_silence_s=1e6, early_s=0.5
)
"""A bench's peers do not answer heartbeats."""
_NEW_LINK = 200  # cases


class Fault(Exception):
    """What may not be."""


# The bare Decoder.


class Noting:
    """A receiver that notes what it is told in the words of `wire_plain.read`."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self.held_bytes = 0

    def stray(self, nbytes: int) -> None: ...

    def data_begins(self, header: DataHeader) -> FrameMemory:
        if header.nbytes > streams.LARGEST_FRAME:
            return FrameMemory(None, is_expected=False)
        self.held_bytes += header.nbytes
        return FrameMemory(memoryview(bytearray(header.nbytes)), is_expected=True)

    def data_ends(self, header: DataHeader, buffer: memoryview) -> None:
        self.found.append(
            Read(
                bytes.fromhex(header.job), header.edge, header.attempt, header.seq, header.key, header.tensors,
                tuple(header.meta.items()), bytes(buffer),
            )
        )  # fmt: skip

    def control(self, document: Any) -> None:
        self.found.append(("control", document))

    def credit(self, job: str, edge: str, attempt: int, limit: int) -> None:
        self.found.append(("credit", job, edge, attempt, limit))

    def ping(self, tag: int) -> None:
        self.found.append(("ping", tag))

    def pong(self, tag: int) -> None:
        self.found.append(("pong", tag))


def decoded(rng: random.Random, stream: bytes) -> str:
    """The error that a stream ends in, empty if it is valid. Raises Fault, and what a decoder may not."""
    noting = Noting()
    decoder = Decoder(noting)
    code = ""
    try:
        _feed(rng, stream, decoder.get_buffer, decoder.buffer_updated, lambda: False)
    except NodewireError as error:
        code = error.code
    expected, is_spoilt = plain.read(stream)
    if is_spoilt != bool(code) or repr(noting.found) != repr(expected):  # 1 is not True
        raise Fault(f"read {len(noting.found)} and {code or 'no error'}; in it are {len(expected)}, {is_spoilt=}")
    return code


def _feed(
    rng: random.Random,
    stream: bytes,
    get_buffer: Callable[[], memoryview],
    updated: Callable[[int], None],
    is_over: Callable[[], bool],
) -> None:
    most = rng.choice((1 << 30, 1 << 30, 1_000, 100, 17))
    if len(stream) > 10_000:
        most = max(most, 1_000)
    at = 0
    while at < len(stream) and not is_over():
        buffer = get_buffer()
        count = min(len(buffer), most, len(stream) - at)
        if not count:
            raise Fault("no memory to read into")
        buffer[:count] = stream[at : at + count]
        at += count
        updated(count)


# A Node.


class Doors:
    """A Transport without sockets: who has it opens channels to the node that listens."""

    def __init__(self) -> None:
        self.arrived: Callable[[Arrival], None] = lambda arrival: None

    async def dial(self, address: str, protocol: asyncio.BufferedProtocol, shown: Identity) -> None:
        raise NotFound("address", "nobody dials here")

    async def listen(self, host: str, port: int, arrived: Callable[[Arrival], None]) -> Listener:
        self.arrived = arrived
        return _Door()


class _Door:
    address = "127.0.0.1:1"

    def close(self) -> None:
        """Nothing is open."""


class _Channel(asyncio.Transport):
    """Takes everything, and keeps nothing."""

    def __init__(self, protocol: asyncio.BufferedProtocol) -> None:
        self.bound = os.urandom(32)
        super().__init__({"bound": self.bound, "transport": "memory"})
        self.out_bytes = 0
        self.is_over = False
        self.protocol = protocol
        protocol.connection_made(self)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It keeps nothing."""

    def writelines(self, list_of_data: Any) -> None:
        self.out_bytes += sum(map(len, list_of_data))

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.is_over:
            self.is_over = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class Peer:
    """Somebody who has the bytes of its links in its own hand."""

    def __init__(self, keys: Keys, node: Node, doors: Doors) -> None:
        self.keys = keys
        self.address = "192.0.2.1"
        self._node = node
        self._doors = doors
        self.channel: _Channel | None = None
        self._accepted = asyncio.Event()

    async def accept(self, protocol: asyncio.BufferedProtocol, shown: Identity) -> None:
        self.channel = _Channel(protocol)
        self._accepted.set()

    def refuse(self) -> None:
        raise Fault("the node is closed")

    @property
    def link(self) -> Link | None:
        return self._node.peers.get(self.keys.public)

    async def connect(self) -> None:
        """Be linked, anew."""
        self.leave()
        self._accepted.clear()
        self._doors.arrived(self)
        await self._accepted.wait()
        assert self.channel is not None
        event = identity.auth(self.keys, self._node.public, self.channel.bound, time.time())
        self.send(random.Random(0), frames.control({"t": "auth", "event": event.to_json()}))
        for _ in range(100):
            if self.link is not None and self.link.is_open:
                return
            await asyncio.sleep(0)
        raise Fault("a valid peer is not welcomed")

    def leave(self) -> None:
        if self.channel is not None:
            self.channel.protocol.connection_lost(None)

    def send(self, rng: random.Random, stream: bytes) -> None:
        channel = self.channel
        assert channel is not None
        protocol = channel.protocol
        _feed(
            rng, stream, lambda: memoryview(protocol.get_buffer(-1)), protocol.buffer_updated, lambda: channel.is_over
        )


class Reader:
    """A node that consumes on PRODUCED from one peer and on OTHERS from another one, and has a job with that alone."""

    def __init__(self) -> None:
        link_manager.MAX_ORIGIN_BYTES = 2**50  # all cases come from one address
        self.doors = Doors()
        self.node = Node(
            Keys(b"\x01" * 32),
            policy=LinkPolicy(patience=STILL, transport=self.doors),
            holder=_nothing_is_kept,
            survey_s=3_600.0,
        )
        self.producer = Peer(Keys(b"\x02" * 32), self.node, self.doors)
        self.other = Peer(Keys(b"\x03" * 32), self.node, self.doors)
        me, producer, other = self.node.public, self.producer.keys.public, self.other.keys.public
        self._routes = {
            PRODUCED: Route(producer, me),
            OTHERS: Route(other, me),
            streams.ANSWERS: Route(me, producer),
        }
        self._beside = {PRODUCED: Route(other, me)}
        small: Sequence[tuple[str, tuple[int, ...]]] = [("float32", (3,)), ("uint8", (0,))]
        self._others = streams.data(JOB, OTHERS, 0, small) + streams.data(JOB, OTHERS, 1, small)
        self._besides = streams.data(BESIDE, PRODUCED, 0, small) + streams.data(BESIDE, PRODUCED, 1, small)
        self._faults: list[str] = []
        self._cases = 0
        self.delivered = 0
        """Frames, of the producer that is not trusted."""

    async def __aenter__(self) -> Reader:
        asyncio.get_running_loop().set_exception_handler(self._unexpected)
        await self.node.listen()
        self.node.open_job(JobChannelSpec(CLOSED, {})).close()
        await self.producer.connect()
        await self.other.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.node.close()

    def _unexpected(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._faults.append(f"{context.get('message')}: {context.get('exception')!r}"[:300])

    async def case(self, rng: random.Random, stream: bytes) -> str:
        """What a stream of the producer's ends in: its link's error, its job's, or "" for none. Raises Fault."""
        self._cases += 1
        if self.producer.link is None or self._cases % _NEW_LINK == 0:
            await self.producer.connect()
        relinks = rng.random() < 0.3
        job = self.node.open_job(
            JobChannelSpec(
                JOB,
                self._routes,
                limits={PRODUCED: streams.LARGEST_FRAME, OTHERS: 4_096},
                on_lost=(lambda peer, error: None) if relinks else None,
            )
        )
        beside = self.node.open_job(JobChannelSpec(BESIDE, self._beside, limits={PRODUCED: 4_096}))
        link = self.producer.link
        assert link is not None
        try:
            for one in (self._others[0], self._besides[0]):
                self.other.send(rng, one.pack())
            self.producer.send(rng, stream)
            for one in (self._others[1], self._besides[1]):
                self.other.send(rng, one.pack())
            await asyncio.sleep(0)
            await self._compare(job, beside, stream, is_whole=False)
        finally:
            job.close()
            beside.close()
        if self.other.link is None:
            await self.other.connect()
            raise Fault("another's link has ended")
        if self._faults:
            raise Fault(self._faults.pop())
        code = link.error.code if link.error is not None else ""
        if not plain.is_whole(stream):  # the next stream would be its end
            self.producer.leave()
        return code

    def open(self) -> JobMailbox:
        """The job, to stay open."""
        return self.node.open_job(JobChannelSpec(JOB, self._routes, limits={PRODUCED: streams.LARGEST_FRAME}))

    async def whole(self, rng: random.Random, stream: bytes) -> None:
        """A stream that is valid: all of it is delivered. Raises Fault."""
        await self.producer.connect()
        job = self.open()
        beside = self.node.open_job(JobChannelSpec(BESIDE, self._beside))
        try:
            for one in (*self._others, *self._besides):
                self.other.send(rng, one.pack())
            self.producer.send(rng, stream)
            await asyncio.sleep(0)
            await self._compare(job, beside, stream, is_whole=True)
        finally:
            job.close()
            beside.close()

    async def _compare(self, job: JobMailbox, beside: JobMailbox, stream: bytes, *, is_whole: bool) -> None:
        """Frames that came are the producers', in order; what others sent beside them is there."""
        sent = [one for one in plain.read(stream)[0] if isinstance(one, Read)]
        mine = [one for one in sent if one.job.hex() == JOB and one.edge == PRODUCED and one.is_named_rightly]
        others = [one for one in plain.read(_packed(self._others))[0] if isinstance(one, Read)]
        came = await _drained(job)
        for edge, known in ((PRODUCED, mine), (OTHERS, others)):
            found = [_plain(frame) for frame in came if frame.edge == edge]
            self.delivered += len(found) if edge == PRODUCED else 0
            if [one[0] for one in found] != list(range(len(found))):
                raise Fault(f"{edge}: seqs {[one[0] for one in found]}")
            if missing := [one for one in found if one not in [_fields(read) for read in known]]:
                raise Fault(f"{edge}: a frame that its producer has not sent: {missing[0]!r:.200}")
            if is_whole and len(found) != len(known):
                raise Fault(f"{edge}: {len(found)} of {len(known)} frames")
        if strange := {frame.edge for frame in came} - {PRODUCED, OTHERS}:
            raise Fault(f"frames on {strange}")
        untouched = [_fields(one) for one in plain.read(_packed(self._besides))[0]]
        if [_plain(frame) for frame in await _drained(beside)] != untouched:
            raise Fault("another job has not got what it was sent")


def _packed(pieces: Sequence[streams.Piece]) -> bytes:
    return b"".join(piece.pack() for piece in pieces)


async def _drained(job: JobMailbox) -> list[Frame[Array]]:
    """All frames that wait."""
    came = []
    job.fail(NotFound("job", "no more is read"))
    while True:
        try:
            came.append(await job.get())
        except NodewireError:
            return came


def _plain(frame: Frame[Array]) -> tuple[Any, ...]:
    types = tuple((array.dtype, array.shape) for array in frame.tensors)
    return frame.seq, types, tuple(frame.meta.items()), b"".join(array.data for array in frame.tensors)


def _fields(read: Read) -> tuple[Any, ...]:
    return read.seq, read.tensors, read.meta, read.data


async def _nothing_is_kept(peer: str, want: Want) -> bytes:
    raise NotFound("pull", "nothing is kept here")
