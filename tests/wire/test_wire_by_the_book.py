"""A second implementation of the wire, written from nips/01 and nips/21 to 24 alone: only the node that it speaks
to is our own."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import os
import ssl
import struct
import time
from dataclasses import dataclass, field

import coincurve
import msgpack
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.wire import JobChannelSpec, Route

DATA, MORE, CONTROL, CREDIT, PING, PONG, FILLER = range(1, 8)
OID = x509.ObjectIdentifier("2.25.331049885473452711640222435708488784047")
JOB = hashlib.sha256(b"by the book").hexdigest()


def H(tag: str, data: bytes) -> bytes:  # noqa: N802 - the name that the NIPs give it
    prefix = hashlib.sha256(tag.encode()).digest()
    return hashlib.sha256(prefix * 2 + data).digest()


def canonical(document) -> bytes:
    if isinstance(document, dict):
        ordered = sorted(document.items(), key=lambda item: item[0].encode())
        count = len(ordered)
        head = bytes([0x80 | count]) if count < 16 else b"\xde" + struct.pack("!H", count)
        return head + b"".join(canonical(key) + canonical(value) for key, value in ordered)
    return msgpack.packb(document)


def tensor_key(edge: str, attempt: int, seq: int) -> bytes:
    return H("nodewire/tensor/1", canonical([JOB, edge, attempt, seq]))[:16]


def frame(kind: int, header: bytes = b"", payload: bytes = b"", stream: int = 0) -> bytes:
    return struct.pack("!BBHIQ", 1, kind, stream, len(header), len(payload)) + header + payload


def tensor_frames(edge: str, seq: int, data: bytes, stream: int) -> bytes:
    about = [bytes.fromhex(JOB), edge, 0, seq, tensor_key(edge, 0, seq), [["uint8", [len(data)]]], {"pos": seq}]
    made = frame(DATA, msgpack.packb(about), data[:262_144], stream)
    for start in range(262_144, len(data), 262_144):
        made += frame(PING, stream=7)  # other frames may come between
        made += frame(MORE, b"", data[start : start + 262_144], stream)
    return made


def extension(secret: coincurve.PrivateKey, spki: bytes, not_after_s: int) -> bytes:
    signature = secret.sign_schnorr(H("nodewire/tls/1", spki + struct.pack("!Q", not_after_s)))
    return bytes.fromhex("30640420") + secret.public_key.format()[1:] + bytes.fromhex("0440") + signature


def check_certificate(der: bytes, expected: str) -> None:
    assert len(der) <= 2_048
    certificate = x509.load_der_x509_certificate(der)
    (only,) = certificate.extensions
    assert (only.oid, only.critical) == (OID, False)
    value = only.value.value
    assert (value[:4].hex(), value[36:38].hex(), len(value)) == ("30640420", "0440", 102)
    assert value[4:36].hex() == expected
    spki = certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    not_after_s = int(certificate.not_valid_after_utc.timestamp())
    message = H("nodewire/tls/1", spki + struct.pack("!Q", not_after_s))
    assert coincurve.PublicKeyXOnly(value[4:36]).verify(value[38:], message)
    certificate.public_key().verify(certificate.signature, certificate.tbs_certificate_bytes, ec.ECDSA(hashes.SHA256()))


def auth(secret: coincurve.PrivateKey, listener: str, certificate: bytes) -> dict:
    public = secret.public_key.format()[1:].hex()
    tags = [["p", listener], ["cert", hashlib.sha256(certificate).hexdigest()], ["v", "1"]]
    now_s = int(time.time())
    listed = json.dumps([0, public, now_s, 28842, tags, ""], separators=(",", ":"), ensure_ascii=False)
    identifier = hashlib.sha256(listed.encode()).digest()
    event = {
        "id": identifier.hex(),
        "pubkey": public,
        "created_at": now_s,
        "kind": 28842,
        "tags": tags,
        "content": "",
        "sig": secret.sign_schnorr(identifier).hex(),
    }
    return {"t": "auth", "event": json.dumps(event)}


@dataclass
class Peer:
    """Reads frames one after another; answers heartbeats."""

    secret: coincurve.PrivateKey
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    under_way: dict[int, tuple[list, bytearray]] = field(default_factory=dict)
    whole: list[tuple[list, bytes]] = field(default_factory=list)
    credit: int = 0
    filler: int = 0

    async def read(self) -> dict | None:
        """One frame; the document if it is one."""
        async with asyncio.timeout(60):
            head = await self.reader.readexactly(16)
            version, kind, stream, header_bytes, payload_bytes = struct.unpack("!BBHIQ", head)
            assert version == 1
            header = await self.reader.readexactly(header_bytes)
            payload = await self.reader.readexactly(payload_bytes)
        if kind == PING:
            self.writer.write(frame(PONG, stream=stream))
        elif kind == FILLER:
            self.filler += payload_bytes
        elif kind == CREDIT:
            job, _, _, limit = msgpack.unpackb(header)
            assert job.hex() == JOB
            self.credit = max(self.credit, limit)
        elif kind in (DATA, MORE):
            if kind == DATA:
                self.under_way[stream] = (msgpack.unpackb(header), bytearray())
            about, data = self.under_way[stream]
            data += payload
            ((_, shape),) = about[5]
            if len(data) == shape[0]:
                self.whole.append((about, bytes(self.under_way.pop(stream)[1])))
        elif kind == CONTROL:
            document = msgpack.unpackb(payload)
            assert canonical(document) == payload
            return document
        return None

    async def document(self, kind: str) -> dict:
        while (said := await self.read()) is None or said["t"] != kind:
            pass
        return said

    def say(self, document: dict) -> None:
        self.writer.write(frame(CONTROL, payload=canonical(document)))


def context(protocol) -> ssl.SSLContext:
    made = ssl.SSLContext(protocol)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    made.set_alpn_protocols(["nodewire/1"])
    return made


async def dialled(address: str, listener: str) -> Peer:
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(
        host, int(port), ssl=context(ssl.PROTOCOL_TLS_CLIENT), server_hostname=""
    )
    certificate = writer.get_extra_info("ssl_object").getpeercert(True)
    check_certificate(certificate, listener)
    peer = Peer(coincurve.PrivateKey(), reader, writer)
    peer.say(auth(peer.secret, listener, certificate))
    await peer.document("welcome")
    return peer


async def test_it_dials_sends_a_frame_and_is_sent_one(net):
    node = await net.node()
    peer = await dialled(net.addresses[node.public], node.public)
    public = peer.secret.public_key.format()[1:].hex()
    sent = os.urandom(600_000)
    peer.writer.write(tensor_frames("to.it", 0, sent, stream=3))  # within 1 MiB: before anybody has opened the job
    job = node.open_job(JobChannelSpec(JOB, {"to.it": Route(public, node.public), "to.us": Route(node.public, public)}))
    got = await asyncio.wait_for(job.get(), 5)
    assert (got.edge, got.seq, bytes(got.tensors[0].data), dict(got.meta)) == ("to.it", 0, sent, {"pos": 0})

    cost = 600_000 + 1_024 + 1_024 + 256
    peer.writer.write(frame(CREDIT, msgpack.packb([bytes.fromhex(JOB), "to.it", 0, 0])))  # what may be sent?
    while not peer.credit:
        await peer.read()
    assert peer.credit >= 16 * 2**20
    assert 2 * cost > 2**20

    putting = asyncio.create_task(_put(job))
    while not peer.whole:
        await peer.read()
    about, data = peer.whole[0]
    assert about[1:5] == ["to.us", 0, 0, tensor_key("to.us", 0, 0)]
    assert data == b"a" * 700_000
    assert not putting.done()  # the second is beyond the first mebibyte
    grant = 16 * 2**20
    peer.writer.write(frame(CREDIT, msgpack.packb([bytes.fromhex(JOB), "to.us", 0, grant])))
    while len(peer.whole) < 2:
        await peer.read()
    await asyncio.wait_for(putting, 5)
    assert peer.filler == 100_000
    peer.say({"t": "bye", "error": {"code": "link-lost", "field": "peer", "reason": "done"}})
    async with asyncio.timeout(60):
        while public in node.peers:
            await asyncio.sleep(0.001)
    peer.writer.transport.abort()


async def _put(job) -> None:
    for seq in range(2):
        await job.put(Frame("to.us", seq, (Array("uint8", (700_000,), b"a" * 700_000),)))


async def test_it_is_dialled(net, tmp_path):
    node, secret = await net.node(), coincurve.PrivateKey()
    public = secret.public_key.format()[1:].hex()
    private = ec.generate_private_key(ec.SECP256R1())
    spki = private.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    ends = now + datetime.timedelta(hours=1)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "means nothing")])
    certificate = (
        x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number(), now, ends)
        .add_extension(x509.UnrecognizedExtension(OID, extension(secret, spki, int(ends.timestamp()))), critical=False)
        .sign(private, hashes.SHA256())
    )
    file = tmp_path / "both.pem"
    file.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    shown = context(ssl.PROTOCOL_TLS_SERVER)
    shown.num_tickets = 0
    shown.load_cert_chain(file)
    der = certificate.public_bytes(serialization.Encoding.DER)
    said = asyncio.get_running_loop().create_future()

    async def serve(reader, writer):
        peer = Peer(secret, reader, writer)
        event = json.loads((await peer.document("auth"))["event"])
        peer.say({"t": "welcome"})
        await peer.document("coordinates")
        said.set_result((event, peer.filler))
        await reader.read()

    server = await asyncio.start_server(serve, "127.0.0.1", ssl=shown)
    host, port = server.sockets[0].getsockname()
    assert (await node.link(public, [f"{host}:{port}"])).peer == public
    event, filler = await asyncio.wait_for(said, 5)
    assert event["pubkey"] == node.public
    assert dict(event["tags"]) == {"p": public, "cert": hashlib.sha256(der).hexdigest(), "v": "1"}
    assert filler == 100_000
    server.close()


@pytest.mark.parametrize(
    ("kind", "payload"),
    [(CONTROL, b"\x82\xa1t\xa1x\xa1n\x01"), (9, b""), (FILLER, bytes(131_073))],
    ids=["a document that is not canonical", "an unknown type", "too long"],
)
async def test_what_breaks_the_book_ends_the_link_with_bye(net, kind, payload):
    node = await net.node()
    peer = await dialled(net.addresses[node.public], node.public)
    peer.writer.write(frame(kind, payload=payload))
    error = (await peer.document("bye"))["error"]
    assert set(error) == {"code", "field", "reason", "retryable", "pays"}
    peer.writer.transport.abort()
