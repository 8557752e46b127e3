"""A process of this host that speaks shared memory by hand."""

import asyncio
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from nodewire.nostr.keys import Keys
from nodewire.wire import Node
from nodewire.wire.framing import frames
from nodewire.wire.shm import SameHost, handshake
from nodewire.wire.shm.channel import _RECORD
from nodewire.wire.shm.handshake import HandshakeResult
from nodewire.wire.transport import identity
from tests.wire.wire_net import Net


def name_of(net: Net, public: str) -> Path:
    """Where the node `public` listens, or would."""
    return SameHost(Keys.generate(), net.folder)._path(public)


def connected(net: Net, node: Node, *, watched: bool = True, at: Path | None = None) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    if watched:
        handshake.watch(connection)
    connection.connect(str(at or name_of(net, node.public)))
    return connection


@dataclass
class Hand:
    """The dialler's end of a channel, greeted and not proven."""

    keys: Keys
    listener: str
    connection: socket.socket
    greeted: HandshakeResult

    @classmethod
    async def greet(cls, net: Net, node: Node, keys: Keys | None = None, *, watched: bool = True) -> "Hand":
        connection = connected(net, node, watched=watched)
        return cls(keys or Keys.generate(), node.public, connection, await handshake.greet(connection, node.public))

    @classmethod
    async def proven(cls, net: Net, node: Node, keys: Keys | None = None) -> "Hand":
        hand = await cls.greet(net, node, keys)
        hand.prove(hand.greeted.bound)
        assert (await hand.document())["t"] == "welcome"
        return hand

    def prove(self, bound: bytes) -> None:
        event = identity.auth(self.keys, self.listener, bound, time.time())
        self.send(frames.control({"t": "auth", "event": event.to_json()}))

    def send(self, data: bytes) -> None:
        assert self.greeted.mapping.out.write(memoryview(data)) == len(data)
        self.say(self.greeted.mapping.out.written, self.greeted.mapping.into.taken)

    def say(self, written: int, taken: int) -> None:
        self.connection.send(_RECORD.pack(written, taken))

    async def document(self) -> dict:
        """The next CONTROL document; other frames are skipped."""
        while True:
            _, kind, _, header, payload = frames.PREFIX.unpack(await self._read(16))
            body = await self._read(header + payload)
            if kind == frames.Type.CONTROL:
                return frames.parse_document(bytearray(body))

    async def _read(self, count: int) -> bytes:
        into, found = self.greeted.mapping.into, bytearray(count)
        done = 0
        while done < count:
            done += into.read_into(memoryview(found)[done:])
            if done < count:
                async with asyncio.timeout(60):
                    said = await asyncio.get_running_loop().sock_recv(self.connection, 4_096)
                if not said:
                    raise ConnectionError
                into.written(_RECORD.unpack_from(said, len(said) - _RECORD.size)[0])
        return bytes(found)

    async def is_closed(self) -> None:
        """Wait until the other end has closed."""
        await closed(self.connection)

    def close(self) -> None:
        self.connection.close()
        self.greeted.mapping.close()


async def closed(connection: socket.socket) -> None:
    async with asyncio.timeout(60):
        try:
            while await asyncio.get_running_loop().sock_recv(connection, 4_096):
                pass
        except ConnectionError:
            pass


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
