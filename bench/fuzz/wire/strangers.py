"""Strangers at a node's doors in `bench.fuzz.fuzz_wire`: handshakes that are not what they must be, and some that are.

- auth: dialling a listening Node over TLS, with an AUTH that is not, or not first, or not only one;
- certificate: what a listener shows to a Node that dials it over TLS, if OpenSSL can show it, and as it is to what
  checks it;
- greeting: the first words through a Unix socket, both ways, and AUTH over the memory that they hand over.

Who asks for `fair` ones gets a handshake that must succeed.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import struct
import time
from contextlib import suppress
from pathlib import Path

from bench.fuzz.wire import auths, certificates, greetings, plain_reader
from bench.fuzz.wire.readers import Fault
from nodewire.errors import BadPeer, NodewireError
from nodewire.net import host_port
from nodewire.nostr.keys import Keys
from nodewire.wire import LinkPolicy, Node, Patience
from nodewire.wire.framing import frames
from nodewire.wire.link import link_manager
from nodewire.wire.shm import SameHost, handshake, mapping
from nodewire.wire.shm.handshake import HandshakeResult
from nodewire.wire.transport import identity

_ANSWER_S = 20.0
_PATIENCE = Patience(handshake_s=20.0, dial_s=20.0, again_s=20.0, stagger_s=20.0)
_RECORD = 16  # bytes, of a shared-memory link's counts


class Doors:
    """A Node that listens on this host, over TLS and beside it."""

    def __init__(self, folder: Path) -> None:
        link_manager.MAX_ORIGIN_BYTES = 2**50  # all cases come from this host
        self._keys = Keys.generate()
        self._dialler = Keys.generate()
        self.same_host = SameHost(self._keys, folder)
        self.node = Node(self._keys, policy=LinkPolicy(patience=_PATIENCE, beside=self.same_host))
        self.dialling = Node(self._dialler, policy=LinkPolicy(patience=_PATIENCE))
        self._folder = folder
        self._shown = identity.make(self._dialler, time.time())
        self._address = ("", 0)
        self._certificates = certificates.Certificates()
        self._faults: list[str] = []
        self.shown = 0
        """Spoilt certificates that OpenSSL agreed to show."""

    async def __aenter__(self) -> Doors:
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: self._faults.append(f"{context.get('message')}: {context.get('exception')!r}"[:300])
        )
        self._address = host_port.parse(await self.node.listen("127.0.0.1"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.node.close()
        await self.dialling.close()

    async def case(self, door: str, rng: random.Random, *, fair: bool) -> str:
        """The kind of a handshake that ended as it must. Raises Fault."""
        async with asyncio.timeout(2 * _ANSWER_S):
            kind: str = await getattr(self, f"_{door}")(rng, fair)
        if self._faults:
            raise Fault(self._faults.pop())
        return f"{door}.{kind}"

    # AUTH over TLS.

    async def _auth(self, rng: random.Random, fair: bool) -> str:
        keys = Keys.generate()
        host, port = self._address
        reader, writer = await asyncio.open_connection(host, port, ssl=self._shown.client, server_hostname="")
        try:
            certificate = writer.get_extra_info("ssl_object").getpeercert(True)
            kind, stream, event = auths.auth(rng, keys, self.node.public, certificate, fair=fair)
            writer.write(stream)
            read = plain_reader.read(stream)
            if not read[0] and not read[1]:
                return f"{kind}: incomplete"
            self._judge(kind, await _said(reader), fair or auths.is_right(stream, event), keys)
        finally:
            writer.transport.abort()
        return kind

    def _judge(self, kind: str, said: str, right: bool | None, keys: Keys) -> None:
        if said not in ("welcome", "refuse", "bye", ""):
            raise Fault(f"{kind}: answered by {said}")
        if right is not None and (said == "welcome") != right:
            raise Fault(f"{kind}: {said or 'nothing'} where it is {'right' if right else 'not right'}")
        if said != "welcome" and keys.public in self.node.peers:
            raise Fault(f"{kind}: linked without a welcome")

    # A certificate over TLS.

    async def _certificate(self, rng: random.Random, fair: bool) -> str:
        keys = Keys.generate()
        right = ("fair", self._certificates.right(keys), self._certificates.private)
        kind, der, private = right if fair else self._certificates.spoilt(rng, keys)
        try:
            identity.check_certificate(der, keys.public, time.time())
        except BadPeer:
            if fair:
                raise Fault("a right certificate is refused") from None
        else:
            if not fair:
                raise Fault(f"{kind}: accepted, {der.hex()}")
        context = certificates.showing(der, private) if fair or rng.random() < 0.5 else None
        if context is None:
            return kind
        self.shown += not fair
        await self._shows(kind, keys.public, context, fair)
        return kind

    async def _shows(self, kind: str, public: str, context: ssl.SSLContext, fair: bool) -> None:
        received = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            data = b""
            with suppress(OSError):
                data = await reader.read(65_536)
                if data:
                    writer.write(frames.control({"t": "welcome"}))
                    await reader.read()  # until it leaves: an end over unread bytes would cost it the welcome
            if not received.done():
                received.set_result(data)
            writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", ssl=context)
        async with server:
            host, port = server.sockets[0].getsockname()
            try:
                link = await self.dialling.link(public, [f"{host}:{port}"])
            except NodewireError as error:
                if fair:
                    raise Fault(f"a right certificate ends in {error}") from error
                if received.done() and received.result():
                    raise Fault(f"{kind}: was told {received.result()[:40]!r}") from error
            else:
                link.abort(BadPeer("bench", "done"))
                if not fair:
                    raise Fault(f"{kind}: linked")

    # Through shared memory.

    async def _greeting(self, rng: random.Random, fair: bool) -> str:
        if not fair and rng.random() < 0.3:
            return await greetings.answer(rng, self.same_host)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with connection:
            handshake.watch(connection)
            connection.connect(str(self.same_host._path(self.node.public)))
            if not fair and rng.random() < 0.5:
                kind = greetings.greet(rng, connection, self._folder)
                if await _end_of(connection):
                    raise Fault(f"{kind}: answered")
                return kind
            greeted = await handshake.greet(connection, self.node.public)
            try:
                keys = Keys.generate()
                kind, stream, event = auths.auth(rng, keys, self.node.public, greeted.bound, fair=fair)
                stream = stream[: mapping.RING_BYTES]
                greeted.mapping.out.write(memoryview(stream))
                if not fair and rng.random() < 0.2:
                    kind = greetings.count(rng, connection, greeted)
                    said = await _said_in(connection, greeted)
                    self._judge(kind, said, False, keys)
                    return kind
                connection.send(struct.pack("!QQ", greeted.mapping.out.written, 0))
                read = plain_reader.read(stream)
                if not read[0] and not read[1]:
                    return f"{kind}: incomplete"
                self._judge(kind, await _said_in(connection, greeted), fair or auths.is_right(stream, event), keys)
            finally:
                greeted.mapping.close()
        return kind


async def _said(reader: asyncio.StreamReader) -> str:
    """The type of the first document that comes; empty if none does."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            while True:
                _, kind, _, header, payload = plain_reader.PREFIX.unpack(await reader.readexactly(16))
                body = await reader.readexactly(header + payload)
                if kind == plain_reader.CONTROL:
                    return str(frames.parse_document(bytearray(body))["t"])
    except (ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
        return ""


async def _said_in(connection: socket.socket, greeted: HandshakeResult) -> str:
    """The same, of what comes through memory."""
    into, came = greeted.mapping.into, bytearray()
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        async with asyncio.timeout(_ANSWER_S):
            while counts := await loop.sock_recv(connection, 4_096):
                into.written(int.from_bytes(counts[-_RECORD : -_RECORD // 2], "big"))
                part = bytearray(into.waiting)
                into.read_into(memoryview(part))
                came += part
                for one in plain_reader.read(bytes(came))[0]:
                    if one[0] == "control":
                        return str(one[1]["t"])
    return ""


async def _end_of(connection: socket.socket) -> bytes:
    """What comes until the other end has closed."""
    came = b""
    with suppress(ConnectionError):
        async with asyncio.timeout(_ANSWER_S):
            while part := await asyncio.get_running_loop().sock_recv(connection, 4_096):
                came += part
    return came
