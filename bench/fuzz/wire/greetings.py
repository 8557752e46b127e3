"""First words through a Unix socket that are not what they must be, for `bench.fuzz.fuzz_wire`."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
from contextlib import suppress
from pathlib import Path

from bench.fuzz import mutations
from bench.fuzz.wire.readers import Fault
from nodewire.errors import NodewireError
from nodewire.nostr.keys import Keys
from nodewire.wire.shm import SameHost, mapping, peer_credentials
from nodewire.wire.shm.handshake import HandshakeResult


def greet(rng: random.Random, connection: socket.socket, folder: Path) -> str:
    hello = peer_credentials.hello(rng.randbytes(32))
    kind = rng.choice(("hello", "short", "no memory", "two", "unsealed", "small", "a file", "a socket"))
    descriptors = [mapping.create() for _ in range(2 if kind == "two" else 1)]
    match kind:
        case "hello":
            hello = mutations.of_bits(rng, hello[:16]) + hello[16:]
        case "short":
            hello = hello[: rng.randrange(1, len(hello))]
        case "unsealed" | "small":
            os.close(descriptors[0])
            descriptors[0] = os.memfd_create("bench", os.MFD_ALLOW_SEALING)
            size = mapping.LINK_BYTES if kind == "unsealed" else rng.choice((0, 1, 4_096, mapping.LINK_BYTES - 1))
            os.ftruncate(descriptors[0], size)
        case "a file" | "a socket":
            os.close(descriptors[0])
            if kind == "a file":
                descriptors[0] = os.open(folder, os.O_TMPFILE | os.O_RDWR)
                os.ftruncate(descriptors[0], mapping.LINK_BYTES)
            else:
                descriptors[0] = socket.socket().detach()
    try:
        if kind == "no memory":
            connection.send(hello)
        else:
            socket.send_fds(connection, [hello], descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return kind


def count(rng: random.Random, connection: socket.socket, greeted: HandshakeResult) -> str:
    """Counts of bytes that cannot be, or no counts."""
    written = rng.choice((mapping.RING_BYTES + 1, 2**32, 2**63, 2**64 - 1))
    counts = rng.choice(((written, 0), (greeted.mapping.out.written, 1 + rng.randrange(2**40)), None))
    if counts is None:
        connection.send(rng.randbytes(rng.choice((1, 8, 15, 17, 31))))
    else:
        connection.send(struct.pack("!QQ", *counts))
    return "counts"


async def answer(rng: random.Random, same_host: SameHost) -> str:
    """A listener that answers a dialler, and not as the one whose name it has."""
    keys = Keys.generate()
    public = keys.public
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as listening:
        path = same_host._path(public)
        listening.bind(str(path))
        listening.listen()
        dial = asyncio.create_task(same_host.dial(public, asyncio.Protocol()))  # type: ignore[arg-type]
        connection, _ = await asyncio.get_running_loop().sock_accept(listening)
        with connection:
            while True:
                with suppress(BlockingIOError):
                    said, descriptors, _, _ = socket.recv_fds(connection, 256, 4)
                    break
                await asyncio.sleep(0)
            inode = os.fstat(descriptors[0]).st_ino
            for descriptor in descriptors:
                os.close(descriptor)
            nonce, pid = rng.randbytes(32), os.getpid()
            words = [public, said[16:], nonce, pid, pid, inode]
            kind = rng.choice(("nonce", "process", "inode", "key", "bits", "short"))
            match kind:
                case "nonce":
                    words[1] = rng.randbytes(32)
                case "process":
                    words[rng.choice((3, 4))] = pid + 1
                case "inode":
                    words[5] = inode + 1
            place = {"listener_pid": words[3], "dialler_pid": words[4], "inode": words[5]}
            transcript = peer_credentials.transcript(words[0], words[1], words[2], **place)
            answer = peer_credentials.reply(Keys.generate() if kind == "key" else keys, nonce, transcript)
            if kind == "bits":
                answer = mutations.of_bits(rng, answer)
            connection.send(answer[: rng.randrange(1, 96)] if kind == "short" else answer)
        path.unlink()
        try:
            await dial
        except NodewireError:
            return kind
    raise Fault(f"{kind}: believed")
