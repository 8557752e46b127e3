"""Nodes on 127.0.0.1 over real sockets or shared memory, and peers that speak the wire's bytes by hand."""

import asyncio
import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nodewire.nostr.keys import Keys
from nodewire.protocol.job.plan import tensor_key
from nodewire.protocol.tensors.frame import Array
from nodewire.wire import Link, LinkPolicy, Node, Patience
from nodewire.wire.framing import frames
from nodewire.wire.framing.frames import DataHeader
from nodewire.wire.shm import SameHost
from nodewire.wire.transport import identity

TLS_AND_SHM = pytest.mark.parametrize("net", ["tls", "shm"], indirect=True)
"""Run over both; peers that speak by hand do so over TLS."""
QUICK = Patience(handshake_s=0.3, dial_s=1.0, stagger_s=0.05, early_s=0.3)


@dataclass
class Net:
    """The nodes of a test; addresses by public key. With a `folder` they find each other there."""

    folder: Path | None = None
    addresses: dict[str, str] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    raws: list["Raw"] = field(default_factory=list)

    async def node(self, keys: Keys | None = None, **options) -> Node:
        keys = keys or Keys.generate()
        if self.folder is not None and "transport" not in options:
            options.setdefault("beside", SameHost(keys, self.folder))
            options.setdefault("patience", Patience(again_s=30.0))  # a busy machine goes no other way
        policy = {name: options.pop(name) for name in LinkPolicy.__slots__ if name in options}
        node = Node(keys, policy=LinkPolicy(**policy), **options)
        self.nodes.append(node)
        self.addresses[node.public] = await node.listen("127.0.0.1")
        return node

    async def link(self, a: Node, b: Node) -> Link:
        link = await a.link(b.public, [self.addresses[b.public]])
        await until(lambda: a.public in b.peers)
        assert link.transport == b.peers[a.public].transport == ("tls" if self.folder is None else "shm")
        return link

    async def pair(self, **options) -> tuple[Node, Node]:
        a, b = await self.node(**options), await self.node(**options)
        await self.link(a, b)
        return a, b

    async def raw(self, node: Node, keys: Keys | None = None, whence: str = "127.0.0.1") -> "Raw":
        """A connection to `node` from an address of ours, secured but not proven."""
        keys = keys or Keys.generate()
        shown = identity.make(keys, time.time())
        host, port = self.addresses[node.public].split(":")
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=shown.client, server_hostname="", local_addr=(whence, 0)
        )
        self.raws.append(Raw(keys, reader, writer, node.public))
        return self.raws[-1]

    async def proven(self, node: Node, keys: Keys | None = None, whence: str = "127.0.0.1") -> "Raw":
        """A connection that `node` has welcomed."""
        raw = await self.raw(node, keys, whence)
        raw.prove()
        assert (await raw.document())["t"] == "welcome"
        return raw

    async def close(self) -> None:
        for raw in self.raws:
            raw.writer.transport.abort()
        for node in self.nodes:
            await node.close()


@dataclass
class Raw:
    keys: Keys
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    listener: str

    @property
    def certificate(self) -> bytes:
        return self.writer.get_extra_info("ssl_object").getpeercert(True)

    def auth(self, **changed) -> dict:
        """The AUTH document, with some arguments of identity.auth changed."""
        arguments = {
            "keys": self.keys,
            "listener": self.listener,
            "certificate": self.certificate,
            "now_s": time.time(),
        }
        return {"t": "auth", "event": identity.auth(**(arguments | changed)).to_json()}

    def prove(self) -> None:
        self.send(frames.control(self.auth()))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def document(self) -> dict:
        """The next CONTROL document; other frames, and where the peer is, are skipped (pings answered)."""
        while True:
            async with asyncio.timeout(60):
                _, kind, stream, header, payload = frames.PREFIX.unpack(await self.reader.readexactly(16))
                body = await self.reader.readexactly(header + payload)
            if kind == frames.Type.PING:
                self.send(frames.pong(stream))
            if kind == frames.Type.CONTROL:
                document = frames.parse_document(bytearray(body))
                if document["t"] != "coordinates":
                    return document

    async def is_closed(self) -> None:
        """Wait until the other end has closed."""
        async with asyncio.timeout(60):
            try:
                while await self.reader.read(65_536):
                    pass
            except OSError:
                pass


async def until(true, within_s: float = 20.0) -> None:
    """Let the loop run until `true()`."""
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.001)


async def refused_as(code: type, field: str, work) -> None:
    """`work` fails with this error, naming this field."""
    with pytest.raises(code) as failed:
        await work
    assert failed.value.field == field, failed.value


def data_frame(
    job: str,
    edge: str,
    seq: int,
    data: bytes = b"x",
    *,
    attempt: int = 0,
    key: bytes | None = None,
    size: int | None = None,
    stream: int = 0,
) -> bytes:
    """A DATA frame of one segment by hand; `size` is what its header claims if it is not what comes."""
    size = len(data) if size is None else size
    key = tensor_key(job, edge, attempt, seq) if key is None else key
    packed = frames.pack_header(DataHeader(job, edge, attempt, seq, key, (("uint8", (size,)),), {}, size))
    first = min(size, frames.SEGMENT_BYTES)
    return frames.PREFIX.pack(frames.VERSION, frames.Type.DATA, stream, len(packed), first) + packed + data


def job_id(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def array(data: bytes | bytearray | memoryview, dtype: str = "uint8", shape: tuple[int, ...] | None = None) -> Array:
    return Array(dtype, shape if shape is not None else (len(data),), data)
