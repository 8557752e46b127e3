"""Floods of a provider's wire, each from one address with as many keys as it likes (`bench.hostile`)."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from bench.hostile.flood import GREEDY, Target, together
from nodewire.net import host_port
from nodewire.nostr.keys import Keys
from nodewire.wire.framing import frames
from nodewire.wire.framing.headers import DataHeader
from nodewire.wire.transport import identity

_LINKS = 20
_IDLE_LINKS = 200
_DIALLERS = 50
_HALF_OPEN = 400
_REFUSED_S = 0.2
_PAUSE_S = 0.02
"""Floods share this machine with what they flood: what counts is the work that they make there."""

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def _data(_: int) -> bytes:
    """The first frame of a job that never was."""
    header = DataHeader(os.urandom(32).hex(), "hidden.0", 0, 0, bytes(16), (), {}, 0)
    packed = frames.pack_header(header)
    return frames.PREFIX.pack(frames.VERSION, frames.Type.DATA, 0, len(packed), 0) + packed


async def wire_filler(target: Target, counts: Counter[str]) -> None:
    """FILLER of nothing, as fast as it goes."""
    await _floods(target, counts, frames.filler(0) * 4_096)


async def wire_filler_bytes(target: Target, counts: Counter[str]) -> None:
    """FILLER as large as may be, as fast as it goes."""
    await _floods(target, counts, frames.filler(frames.MAX_FILLER_BYTES))


async def wire_unknown_jobs(target: Target, counts: Counter[str]) -> None:
    """DATA for jobs that never were, each frame of another one."""
    await _floods(target, counts, b"".join(map(_data, range(4_000))))


async def wire_documents(target: Target, counts: Counter[str]) -> None:
    """The document that takes longest to read."""
    nothing: list[object] = []
    await _floods(target, counts, frames.control({"t": "x", "x": [nothing] * 2_040}))


async def wire_links(target: Target, counts: Counter[str]) -> None:
    """Links that say nothing, each with a key of its own, made again when they are ended."""

    async def hold() -> None:
        reader, writer = await _linked(target, counts)
        try:
            while await reader.read(65_536):
                pass
        finally:
            writer.transport.abort()

    await together(*(_again(hold, counts) for _ in range(_IDLE_LINKS)))


async def wire_handshakes(target: Target, counts: Counter[str]) -> None:
    """Handshakes without end, each with another key."""

    async def shake() -> None:
        _, writer = await _linked(target, counts)
        writer.transport.abort()
        await asyncio.sleep(_PAUSE_S)

    await together(*(_again(shake, counts) for _ in range(_DIALLERS)))


async def wire_half_open(target: Target, counts: Counter[str]) -> None:
    """Connections that begin TLS, and never end its handshake."""
    host, port = host_port.parse(target.addresses[0])

    async def hold() -> None:
        reader, writer = await asyncio.open_connection(host, port, local_addr=(GREEDY[0], 0))
        counts["sent"] += 1
        try:
            writer.write(b"\x16\x03\x01\x02\x00\x01")
            await reader.read()
            await asyncio.sleep(_REFUSED_S)
        finally:
            writer.transport.abort()

    await together(*(_again(hold, counts) for _ in range(_HALF_OPEN)))


async def _floods(target: Target, counts: Counter[str], block: bytes) -> None:
    async def flood() -> None:
        reader, writer = await _linked(target, counts)
        reading = asyncio.create_task(_read_all(reader))
        try:
            while not reading.done():
                writer.write(block)
                await writer.drain()
                counts["sent"] += 1
                await asyncio.sleep(0)
            counts["ended"] += 1
        finally:
            reading.cancel()
            writer.transport.abort()

    await together(*(_again(flood, counts) for _ in range(_LINKS)))


async def _read_all(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(65_536):
            pass


async def _again(do: Callable[[], Awaitable[None]], counts: Counter[str]) -> None:
    while True:
        try:
            await do()
        except (OSError, asyncio.IncompleteReadError, ssl.SSLError):
            counts["refused"] += 1
            await asyncio.sleep(_REFUSED_S)


async def _linked(target: Target, counts: Counter[str]) -> _Streams:
    """A link of a new key."""
    keys, (host, port) = Keys.generate(), host_port.parse(target.addresses[0])
    reader, writer = await asyncio.open_connection(
        host, port, ssl=identity.client_context(), server_hostname="", local_addr=(GREEDY[0], 0)
    )
    try:
        certificate = writer.get_extra_info("ssl_object").getpeercert(True)
        event = identity.auth(keys, target.provider, certificate, time.time())
        writer.write(frames.control({"t": "auth", "event": event.to_json()}))
        _, _, _, header, payload = frames.PREFIX.unpack(await reader.readexactly(frames.PREFIX.size))
        await reader.readexactly(header + payload)
    except BaseException:
        writer.transport.abort()
        raise
    counts["linked"] += 1
    return reader, writer
