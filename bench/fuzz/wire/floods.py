"""What peers may do to fill a node's memory, well-formed all of it; how much it grows (`bench.fuzz.fuzz_wire`)."""

from __future__ import annotations

import gc
import hashlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from bench.fuzz.wire import plain_reader as plain
from bench.fuzz.wire import streams
from bench.fuzz.wire.readers import Peer, Reader
from bench.fuzz.wire.streams import JOB, PRODUCED, Piece
from nodewire.nostr.keys import Keys
from nodewire.wire.framing import frames
from nodewire.wire.job import early_frames, edge_window, mailbox
from nodewire.wire.link import link

SLACK_BYTES = 8 * 2**20
"""A frame and a document under way, links, and what an allocator keeps."""


@dataclass(frozen=True, slots=True)
class Flood:
    run: Callable[[Reader], Awaitable[None]]
    kept_bytes: int
    """What the wire says that it keeps."""


def bound(flood: Flood) -> int:
    """Python's objects for what is kept may take as much again."""
    return 2 * flood.kept_bytes + SLACK_BYTES


def _wide(job: str, seq: int, edge: str = PRODUCED) -> bytes:
    """A frame without bytes whose header is as large as may be when it is read: 64 tensors of rank 8."""
    meta = {f"{n:02}": f"{n:03}" for n in range(64)}
    return streams.data(job, edge, seq, [("bool", (0, *[300 + n for n in range(7)]))] * 64, meta=meta)[0].pack()


async def _early(reader: Reader) -> None:
    for seq in range(3_000):
        _send(reader.producer, _wide(streams.UNKNOWN, seq))


async def _early_jobs(reader: Reader) -> None:
    """Each frame of another job, over links that are lost and made again."""
    for number in range(4_000):
        if number % 1_000 == 999:
            await reader.producer.connect()
        _send(reader.producer, _wide(hashlib.sha256(str(number).encode()).hexdigest(), 0))


async def _early_of_many(reader: Reader) -> None:
    for number in range(24):
        peer = Peer(Keys.generate(), reader.node, reader.doors)
        await peer.connect()
        job = hashlib.sha256(str(number).encode()).hexdigest()
        for seq in range(5):
            for piece in streams.data(job, PRODUCED, seq, [("uint8", (2**20 - 2_048,))]):
                _send(peer, piece.pack())


async def _unread(reader: Reader) -> None:
    reader.open()
    for seq in range(3_000):
        _send(reader.producer, _wide(JOB, seq))
        if reader.producer.link is None:
            break


async def _documents(reader: Reader) -> None:
    reader.open()
    piece = Piece(plain.CONTROL, payload={"job": JOB, "t": "sent", "x": bytes(4_000)}).pack()
    for _ in range(mailbox.MAX_CONTROLS):
        _send(reader.producer, piece)


async def _pings(reader: Reader) -> None:
    """From a peer that does not read."""
    channel = reader.producer.channel
    assert channel is not None
    channel.protocol.pause_writing()
    for _ in range(2_000):
        if reader.producer.link is not None:
            _send(reader.producer, frames.ping(1) * 100)


FLOODS = {
    "early": Flood(_early, early_frames.MAX_LINK_BYTES),
    "early_jobs": Flood(_early_jobs, early_frames.MAX_LINK_BYTES),
    "early_of_many": Flood(_early_of_many, early_frames.MAX_BYTES),
    "unread": Flood(_unread, edge_window.WINDOW_BYTES),
    "documents": Flood(_documents, mailbox.MAX_CONTROLS * frames.MAX_DOCUMENT_BYTES),
    "pings": Flood(_pings, link.MAX_URGENT_BYTES),
}


async def grown(name: str) -> int:
    """By how many bytes this process's resident size grew at most."""
    async with Reader() as reader:
        gc.collect()
        before = _begin_anew()
        await FLOODS[name].run(reader)
        return _status("VmHWM") - before


def _begin_anew() -> int:
    """Let the peak begin at the resident size, which is returned."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _send(peer: Peer, stream: bytes) -> None:
    peer.send(random.Random(0), stream)


def _status(name: str) -> int:
    """Bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(f"{name}:")) * 1024
