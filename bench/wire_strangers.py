"""Strangers at a node's doors in `bench.fuzz_wire`: handshakes that are not what they must be, and some that are.

- auth: dialling a listening Node over TLS, with an AUTH that is not, or not first, or not only one;
- certificate: what a listener shows to a Node that dials it over TLS, if OpenSSL can show it, and as it is to what
  checks it;
- greeting: the first words through a Unix socket, both ways, and AUTH over the memory that they hand over.

Who asks for `fair` ones gets a handshake that must succeed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from bench import mutations
from bench import wire_streams as streams
from bench.wire_readers import Fault
from nodewire.errors import BadPeer, NodewireError
from nodewire.nostr import event as nostr_event
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.wire import Node, Patience, frames, identity
from nodewire.wire.shm import SameHost, greeting, memory, proof
from nodewire.wire.shm.greeting import Greeted
from nodewire.wire.transport import parse_address

_ANSWER_S = 20.0
_PATIENCE = Patience(handshake_s=20.0, dial_s=20.0, again_s=20.0, stagger_s=20.0)
_RECORD = 16  # bytes, of a shared-memory link's counts


# What is said in place of AUTH.


def auth(rng: random.Random, keys: Keys, listener: str, bound: bytes, *, fair: bool) -> tuple[str, bytes, Event]:
    """Kind, bytes, and the event that would be right."""
    event = identity.auth(keys, listener, bound, time.time())
    if fair:
        lead = frames.filler(rng.randrange(2_000)) if rng.random() < 0.3 else b""
        return "fair", lead + frames.control({"t": "auth", "event": event.to_json()}), event
    name = rng.choice(tuple(_AUTHS))
    return name, _AUTHS[name](rng, keys, event), event


def _document(event: Event | str) -> bytes:
    return frames.control({"t": "auth", "event": event if isinstance(event, str) else event.to_json()})


def _signed(keys: Keys, event: Event, **changed: Any) -> bytes:
    how = {"created_at": event.created_at, "tags": event.tags, "content": "", **changed}
    return _document(nostr_event.sign(keys, how.pop("kind", event.kind), **how))


def _text(rng: random.Random, keys: Keys, event: Event) -> bytes:
    changed = mutations.of_bytes(rng, event.to_json().encode(), streams.PACKED[:4])[:30_000]
    return _document(changed.decode("utf-8", "replace"))


def _event(rng: random.Random, keys: Keys, event: Event) -> bytes:
    changed = mutations.of_document(rng, json.loads(event.to_json()))
    return _document(mutations.dumps(changed)[:30_000].decode("utf-8", "replace"))


def _late(rng: random.Random, keys: Keys, event: Event) -> bytes:
    late_s = rng.choice((-1, 1)) * rng.choice((70, 3_600, 10**6))
    return _signed(keys, event, created_at=max(0, event.created_at + late_s))


def _forwarded(rng: random.Random, keys: Keys, event: Event) -> bytes:
    """Made for somebody else, for another channel, or for both."""
    other, channel = Keys.generate().public, rng.randbytes(40)
    listener = event.values("p")[0]
    made_for = rng.choice(((other, channel), (listener, channel)))
    return _document(identity.auth(keys, *made_for, time.time()))


def _tags(rng: random.Random, keys: Keys, event: Event) -> bytes:
    """Signed indeed, with tags that are not right."""
    tags = [list(tag) for tag in event.tags]
    at = rng.randrange(3)
    match rng.randrange(4):
        case 0:
            del tags[at]
        case 1:
            tags.insert(at, [tags[at][0], rng.choice(("", "00" * 32, "2"))])
        case 2:
            tags[at][1] = rng.choice(("", tags[at][1].upper() + " ", tags[at][1][:-1], "0", "v" * 900))
        case 3:
            tags[at][0] = rng.choice(("e", "", "P"))
    return _signed(keys, event, tags=tags)


def _anothers(rng: random.Random, keys: Keys, event: Event) -> bytes:
    """Somebody's name under our signature, or our name under somebody's."""
    other = Keys.generate()
    shown = nostr_event.sign(other, event.kind, created_at=event.created_at, tags=event.tags).as_dict()
    mine = event.as_dict()
    for name in rng.choice((("sig",), ("pubkey",), ("pubkey", "id"), ("id",), ("id", "sig"))):
        mine[name] = shown[name]
    return _document(json.dumps(mine))


def _kind(rng: random.Random, keys: Keys, event: Event) -> bytes:
    return _signed(keys, event, kind=rng.choice((0, 1, 22242, 28841, 65_535)))


def _large(rng: random.Random, keys: Keys, event: Event) -> bytes:
    return _signed(keys, event, content="x" * rng.choice((1_800, 2_048, 3_900, 30_000)))


def _lead(rng: random.Random, keys: Keys, event: Event) -> bytes:
    """Something else, and then the right one."""
    first = (
        frames.ping(1),
        frames.pong(1),
        frames.credit(streams.JOB, streams.PRODUCED, 0, 5),
        b"".join(piece.pack() for piece in streams.STREAMS[rng.randrange(4)]),
        frames.control({"t": rng.choice(("welcome", "hello", "pull", "cancel"))}),
        b"".join(frames.filler(100) for _ in range(40)),
        frames.filler(5_000),
        streams.PREFIX.pack(1, streams.CONTROL, 0, 0, 5_000),
    )
    return rng.choice(first) + _document(event)


def _document_bytes(rng: random.Random, keys: Keys, event: Event) -> bytes:
    return mutations.of_bytes(rng, _document(event), streams.PACKED[:4])[:30_000]


_AUTHS: Mapping[str, Callable[[random.Random, Keys, Event], bytes]] = {
    "text": _text, "event": _event, "late": _late, "forwarded": _forwarded, "tags": _tags, "anothers": _anothers,
    "kind": _kind, "large": _large, "lead": _lead, "bytes": _document_bytes,
}  # fmt: skip


def _is_right(stream: bytes, event: Event) -> bool | None:
    """Whether changes have left the right event there, first and within what a stranger may send; None if other
    bytes follow, so that a link which is opened may end at once."""
    found, _ = streams.read(stream[:4_096])
    if not found or not isinstance(found[0], tuple) or found[0][0] != "control" or found[0][1].get("t") != "auth":
        return False
    with suppress(ValueError, TypeError, AttributeError, RecursionError):
        said = json.loads(found[0][1]["event"])
        if all(said.get(name) == value for name, value in event.as_dict().items()):
            return True if len(found) == 1 and streams.is_whole(stream) else None
    return False


class Doors:
    """A Node that listens on this host, over TLS and beside it."""

    def __init__(self, folder: Path) -> None:
        self._keys = Keys.generate()
        self._dialler = Keys.generate()
        self.same_host = SameHost(self._keys, folder)
        self.node = Node(self._keys, patience=_PATIENCE, beside=self.same_host)
        self.dialling = Node(self._dialler, patience=_PATIENCE)
        self._folder = folder
        self._shown = identity.make(self._dialler, time.time())
        self._address = ("", 0)
        self._private = ec.generate_private_key(ec.SECP256R1())
        self._others = (ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65_537, 2_048))
        self._faults: list[str] = []
        self.shown = 0
        """Spoilt certificates that OpenSSL agreed to show."""

    async def __aenter__(self) -> Doors:
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: self._faults.append(f"{context.get('message')}: {context.get('exception')!r}"[:300])
        )
        self._address = parse_address(await self.node.listen("127.0.0.1"))
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
            kind, stream, event = auth(rng, keys, self.node.public, certificate, fair=fair)
            writer.write(stream)
            read = streams.read(stream)
            if not read[0] and not read[1]:
                return f"{kind}: incomplete"
            self._judge(kind, await _said(reader), fair or _is_right(stream, event), keys)
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
        kind, der, private = ("fair", self._right(keys), self._private) if fair else self._spoilt(rng, keys)
        try:
            identity.check_certificate(der, keys.public, time.time())
        except BadPeer:
            if fair:
                raise Fault("a right certificate is refused") from None
        else:
            if not fair:
                raise Fault(f"{kind}: accepted, {der.hex()}")
        context = _showing(der, private) if fair or rng.random() < 0.5 else None
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
                    await reader.read(1)
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

    def _right(self, keys: Keys) -> bytes:
        certificate = identity.build(keys, self._private, time.time(), 3_600)
        return certificate.public_bytes(serialization.Encoding.DER)

    def _spoilt(self, rng: random.Random, keys: Keys) -> tuple[str, bytes, Any]:
        right = self._right(keys)
        match rng.randrange(4):
            case 0:
                return "bits", _other_bits(rng, right), self._private
            case 1:
                changed = mutations.of_bytes(rng, right, [right])
                return ("stretches", changed, self._private) if changed != right else self._spoilt(rng, keys)
            case 2:
                return "signature", _with_signature(rng, right), self._private
        return self._rebuilt(rng, x509.load_der_x509_certificate(right), keys)

    def _rebuilt(self, rng: random.Random, right: x509.Certificate, keys: Keys) -> tuple[str, bytes, Any]:
        """A certificate that signs itself, and is not what it must be."""
        known = right.extensions[0].value
        assert isinstance(known, x509.UnrecognizedExtension)
        value, private, algorithm, oid = known.value, self._private, hashes.SHA256(), identity.OID
        begins, ends, extensions = right.not_valid_before_utc, right.not_valid_after_utc, 1
        kind = rng.choice(("expired", "early", "prolonged", "extension", "other key", "none", "two", "oid", "curve",
                           "rsa", "sha384"))  # fmt: skip
        match kind:
            case "expired":
                begins, ends = begins - timedelta(days=9), begins - timedelta(days=rng.randrange(1, 9))
            case "early":
                begins = begins + timedelta(hours=1, minutes=rng.randrange(5, 59))
            case "prolonged":
                ends += timedelta(seconds=rng.choice((1, 60, 10**6)))
            case "extension":
                value = _other_bits(rng, value)
            case "other key":
                other = identity.build(rng.choice((keys, Keys.generate())), self._others[0], time.time(), 3_600)
                shown = other.extensions[0].value
                assert isinstance(shown, x509.UnrecognizedExtension)
                value = shown.value
            case "none" | "two":
                extensions = 0 if kind == "none" else 2
            case "oid":
                oid = x509.ObjectIdentifier("2.25.1")
            case "curve" | "rsa":
                private = self._others[kind == "rsa"]
            case "sha384":
                algorithm = hashes.SHA384()
        builder = (
            x509.CertificateBuilder()
            .subject_name(right.subject)
            .issuer_name(right.issuer)
            .public_key(private.public_key())
            .serial_number(1)
            .not_valid_before(begins)
            .not_valid_after(ends)
        )
        for number in range(extensions):
            named = oid if not number else x509.ObjectIdentifier("2.25.2")
            builder = builder.add_extension(x509.UnrecognizedExtension(named, value), critical=False)
        return kind, builder.sign(private, algorithm).public_bytes(serialization.Encoding.DER), private

    # Through shared memory.

    async def _greeting(self, rng: random.Random, fair: bool) -> str:
        if not fair and rng.random() < 0.3:
            return await self._answered(rng)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with connection:
            greeting.watch(connection)
            connection.connect(str(self.same_host._path(self.node.public)))
            if not fair and rng.random() < 0.5:
                kind = _greet_badly(rng, connection, self._folder)
                if await _end_of(connection):
                    raise Fault(f"{kind}: answered")
                return kind
            greeted = await greeting.greet(connection, self.node.public)
            try:
                keys = Keys.generate()
                kind, stream, event = auth(rng, keys, self.node.public, greeted.bound, fair=fair)
                stream = stream[: memory.RING_BYTES]
                greeted.mapping.out.write(memoryview(stream))
                if not fair and rng.random() < 0.2:
                    kind = _count_badly(rng, connection, greeted)
                    said = await _said_in(connection, greeted)
                    self._judge(kind, said, False, keys)
                    return kind
                connection.send(streams.struct.pack("!QQ", greeted.mapping.out.written, 0))
                read = streams.read(stream)
                if not read[0] and not read[1]:
                    return f"{kind}: incomplete"
                self._judge(kind, await _said_in(connection, greeted), fair or _is_right(stream, event), keys)
            finally:
                greeted.mapping.close()
        return kind

    async def _answered(self, rng: random.Random) -> str:
        """A listener that answers a dialler, and not as the one whose name it has."""
        keys = Keys.generate()
        public = keys.public
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as listening:
            path = self.same_host._path(public)
            listening.bind(str(path))
            listening.listen()
            dial = asyncio.create_task(self.same_host.dial(public, asyncio.Protocol()))  # type: ignore[arg-type]
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
                transcript = proof.transcript(words[0], words[1], words[2], **place)
                answer = proof.reply(Keys.generate() if kind == "key" else keys, nonce, transcript)
                if kind == "bits":
                    answer = _other_bits(rng, answer)
                connection.send(answer[: rng.randrange(1, 96)] if kind == "short" else answer)
            path.unlink()
            try:
                await dial
            except NodewireError:
                return kind
        raise Fault(f"{kind}: believed")


def _other_bits(rng: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    for at in rng.sample(range(len(data) * 8), 1 << rng.randrange(3)):
        made[at // 8] ^= 1 << at % 8
    return bytes(made)


def _with_signature(rng: random.Random, der: bytes) -> bytes:
    """The certificate with other bytes in place of its signature, of any length."""
    certificate = x509.load_der_x509_certificate(der)
    tail = len(certificate.signature) + 3
    inner = der[4 : len(der) - tail]
    signature = rng.randbytes(rng.choice((0, 1, 8, 70, 71, 72, 73, 126, 127, 128, 254, 255, 256, 400, 1_200)))
    inner += b"\x03" + _length(len(signature) + 1) + b"\x00" + signature
    return b"\x30" + _length(len(inner)) + inner


def _length(count: int) -> bytes:
    if count < 128:
        return bytes((count,))
    size = (count.bit_length() + 7) // 8
    return bytes((0x80 | size,)) + count.to_bytes(size, "big")


def _showing(der: bytes, private: Any) -> ssl.SSLContext | None:
    """What shows a certificate; None if OpenSSL does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols([identity.ALPN])
    key = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with tempfile.NamedTemporaryFile() as file:
        file.write(key + ssl.DER_cert_to_PEM_cert(der).encode())
        file.flush()
        try:
            context.load_cert_chain(file.name)
        except (ssl.SSLError, ValueError):
            return None
    return context


async def _said(reader: asyncio.StreamReader) -> str:
    """The type of the first document that comes; empty if none does."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            while True:
                _, kind, _, header, payload = streams.PREFIX.unpack(await reader.readexactly(16))
                body = await reader.readexactly(header + payload)
                if kind == streams.CONTROL:
                    return str(frames.parse_document(bytearray(body))["t"])
    except (ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
        return ""


async def _said_in(connection: socket.socket, greeted: Greeted) -> str:
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
                for one in streams.read(bytes(came))[0]:
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


def _greet_badly(rng: random.Random, connection: socket.socket, folder: Path) -> str:
    hello = proof.hello(rng.randbytes(32))
    kind = rng.choice(("hello", "short", "no memory", "two", "unsealed", "small", "a file", "a socket"))
    descriptors = [memory.create() for _ in range(2 if kind == "two" else 1)]
    match kind:
        case "hello":
            hello = _other_bits(rng, hello[:16]) + hello[16:]
        case "short":
            hello = hello[: rng.randrange(1, len(hello))]
        case "unsealed" | "small":
            os.close(descriptors[0])
            descriptors[0] = os.memfd_create("bench", os.MFD_ALLOW_SEALING)
            size = memory.LINK_BYTES if kind == "unsealed" else rng.choice((0, 1, 4_096, memory.LINK_BYTES - 1))
            os.ftruncate(descriptors[0], size)
        case "a file" | "a socket":
            os.close(descriptors[0])
            if kind == "a file":
                descriptors[0] = os.open(folder, os.O_TMPFILE | os.O_RDWR)
                os.ftruncate(descriptors[0], memory.LINK_BYTES)
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


def _count_badly(rng: random.Random, connection: socket.socket, greeted: Greeted) -> str:
    """Counts of bytes that cannot be, or no counts."""
    written = rng.choice((memory.RING_BYTES + 1, 2**32, 2**63, 2**64 - 1))
    counts = rng.choice(((written, 0), (greeted.mapping.out.written, 1 + rng.randrange(2**40)), None))
    if counts is None:
        connection.send(rng.randbytes(rng.choice((1, 8, 15, 17, 31))))
    else:
        connection.send(streams.struct.pack("!QQ", *counts))
    return "counts"
