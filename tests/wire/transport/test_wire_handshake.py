"""Strangers: what they may send before they have proven themselves, and who is turned away with what reason."""

import asyncio
import contextlib
import ssl
import tempfile
import time
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from nodewire.errors import BadInput, BadPeer, LinkLost, NotAllowed, TimedOut
from nodewire.nostr.keys import Keys
from nodewire.wire import JobChannelSpec, LinkPolicy, Node, Route
from nodewire.wire.framing import frames
from nodewire.wire.link.link_manager import MAX_HALF_OPEN
from nodewire.wire.transport import identity
from nodewire.wire.transport.tcp import TcpTls
from tests.wire.wire_net import QUICK, data_frame, job_id, refused_as, until


async def impostor(keys: Keys, change=lambda builder, now: builder, tweak=lambda context: None, extend=True):
    """A TLS server whose certificate is `change`d. Returns its address and what it receives."""
    received = bytearray()
    private = ec.generate_private_key(ec.SECP256R1())
    right = identity.build(keys, private, time.time(), 3_600)
    builder = (
        x509.CertificateBuilder()
        .subject_name(right.subject)
        .issuer_name(right.issuer)
        .public_key(private.public_key())
        .serial_number(1)
        .not_valid_before(right.not_valid_before_utc)
        .not_valid_after(right.not_valid_after_utc)
    )
    if extend:
        builder = builder.add_extension(right.extensions[0].value, False)
    certificate = change(builder, right).sign(private, hashes.SHA256())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols([identity.ALPN])
    tweak(context)
    with tempfile.NamedTemporaryFile() as file:
        file.write(
            private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        file.flush()
        context.load_cert_chain(file.name)

    async def serve(reader, writer):
        while data := await reader.read(65_536):
            received.extend(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", ssl=context)
    host, port = server.sockets[0].getsockname()
    return server, f"{host}:{port}", received


IMPOSTORS = {
    "another key": ("npub", {}),
    "no extension": ("extension", {"extend": False}),
    "prolonged": (
        "signature",
        {"change": lambda b, right: _replace(b, _not_valid_after=right.not_valid_after_utc + timedelta(days=1))},
    ),
    "no nodewire": ("alpn", {"tweak": lambda context: context.set_alpn_protocols(["http/1.1"])}),
}


def _replace(builder, **fields):
    for name, value in fields.items():
        setattr(builder, name, value.replace(tzinfo=None))
    return builder


@pytest.mark.parametrize("case", IMPOSTORS)
async def test_an_impostor_is_named_and_told_nothing(net, case):
    field, changes = IMPOSTORS[case]
    a, keys = await net.node(), Keys.generate()
    expected = Keys.generate().public if case == "another key" else keys.public
    server, address, received = await impostor(keys, **changes)
    async with server:
        await refused_as(BadPeer, field, a.link(expected, [address]))
    assert received == b""
    assert not a.peers


async def test_tls_below_1_3_is_refused(net):
    a, keys = await net.node(), Keys.generate()

    def old(context):
        context.maximum_version = ssl.TLSVersion.TLSv1_2

    server, address, received = await impostor(keys, tweak=old)
    async with server:
        with pytest.raises(LinkLost):
            await a.link(keys.public, [address])
    assert received == b""


async def test_both_ends_know_each_other_before_anything_else(net):
    a, b = await net.pair()
    assert a.peers[b.public].peer == b.public
    assert b.peers[a.public].peer == a.public
    assert a.peers[b.public].dialled
    assert not b.peers[a.public].dialled
    await until(lambda: a.peers[b.public].rtt_us is not None and b.peers[a.public].rtt_us is not None)
    assert a.peers[b.public].bytes_out > 100_000 < a.peers[b.public].bytes_in  # the warm-up


async def refusal(raw) -> dict:
    document = await raw.document()
    await raw.is_closed()
    assert document["t"] in ("refuse", "bye")
    return document["error"]


async def test_a_forwarded_auth_is_refused(net):
    """M, whom C dialled, shows C's proof to S."""
    s, c = await net.node(), Keys.generate()
    m = identity.make(Keys.generate(), time.time())
    for changed, field in (
        ({"keys": c, "listener": m.public, "certificate": m.certificate}, "p"),
        ({"keys": c, "certificate": m.certificate}, "cert"),
    ):
        raw = await net.raw(s)
        raw.send(frames.control(raw.auth(**changed)))
        error = await refusal(raw)
        assert (error["code"], error["field"]) == ("bad-peer", field)
    assert not s.peers


@pytest.mark.parametrize("late_s", [-70, 70])
async def test_an_old_or_early_auth_is_refused(net, late_s):
    s = await net.node()
    raw = await net.raw(s)
    raw.send(frames.control(raw.auth(now_s=time.time() + late_s)))
    assert (await refusal(raw))["field"] == "created_at"
    assert not s.peers


async def test_who_is_not_admitted_is_told_so(net):
    s = await net.node(admit=lambda peer: False)
    a = await net.node()
    await refused_as(NotAllowed, "npub", a.link(s.public, [net.addresses[s.public]]))
    assert not s.peers


async def test_nothing_but_auth_is_read_from_a_stranger(net):
    heard = []
    s = await net.node(on_control=lambda peer, document: heard.append(document))
    keys = Keys.generate()
    job = s.open_job(JobChannelSpec(job_id("j"), {"e": Route(keys.public, s.public)}))
    for early in (
        data_frame(job.request, "e", 0),
        frames.ping(1),
        frames.credit(job.request, "e", 0, 5),
        frames.control({"t": "hello"}),
        frames.control({"t": "welcome"}),
    ):
        raw = await net.raw(s, keys)
        raw.send(early)
        raw.prove()
        await refusal(raw)
    assert not heard
    assert not s.peers
    assert not job._queue


async def test_a_stranger_may_send_four_kilobytes(net):
    s = await net.node()
    raw = await net.raw(s)
    for _ in range(40):  # well-formed fillers, each small
        raw.send(frames.filler(100))
    error = await refusal(raw)
    assert error["code"] == "too-large"
    raw = await net.raw(s)
    raw.send(frames.PREFIX.pack(1, frames.Type.CONTROL, 0, 0, 5_000))
    assert (await refusal(raw))["code"] == "too-large"
    raw = await net.raw(s)
    raw.send(frames.filler(3_000))
    raw.prove()
    assert (await raw.document())["t"] == "welcome"


@pytest.mark.parametrize("secured", [False, True])
async def test_a_stranger_has_little_time(net, secured):
    s = await net.node(patience=QUICK)
    if secured:
        raw = await net.raw(s)
        reader = raw.reader
    else:
        reader, writer = await asyncio.open_connection(*net.addresses[s.public].split(":"))
    began = time.monotonic()
    async with asyncio.timeout(60):
        with contextlib.suppress(OSError):
            while await reader.read(1):
                pass
    assert time.monotonic() - began < 3
    assert len(s._links.strangers) == 0
    if not secured:
        writer.close()


async def test_at_most_64_strangers_at_a_time_and_the_oldest_makes_room(net):
    s = await net.node()
    host, port = net.addresses[s.public].split(":")
    strangers = [await asyncio.open_connection(host, port) for _ in range(MAX_HALF_OPEN)]
    await until(lambda: len(s._links.strangers) == MAX_HALF_OPEN)
    a = await net.node()
    await net.link(a, s)
    reader, _ = strangers[0]
    async with asyncio.timeout(2):
        with contextlib.suppress(OSError):
            assert await reader.read() == b""
    for _, stranger in strangers:
        stranger.transport.abort()
    await until(lambda: len(s._links.strangers) == 0)
    assert a.public in s.peers


async def test_the_link_that_exists_is_used_again(net):
    a, b = await net.pair()
    assert await net.link(a, b) is a.peers[b.public]
    assert await net.link(b, a) is b.peers[a.public]
    assert len(a.peers) == len(b.peers) == 1
    first, second = await asyncio.gather(*(net.link(c, a) for c in [await net.node()] * 2))
    assert first is second


async def test_of_two_simultaneous_dials_the_lower_keys_survives(net):
    for _ in range(10):
        a, b = await net.node(), await net.node()
        await asyncio.gather(net.link(a, b), net.link(b, a))
        await until(lambda a=a, b=b: not a._links._dials and not b._links._dials)
        low, high = sorted((a, b), key=lambda node: node.public)
        assert low.peers[high.public].dialled
        assert not high.peers[low.public].dialled
        assert await low.peers[high.public].is_alive()
        assert await high.peers[low.public].is_alive()


async def test_a_dial_survives_where_the_other_way_is_closed(net):
    """Both dial, but only one of them can be reached."""
    a, b = await net.node(patience=QUICK), await net.node(patience=QUICK)
    low, high = sorted((a, b), key=lambda node: node.public)
    nowhere = "127.0.0.1:1"
    there, _ = await asyncio.gather(
        high.link(low.public, [net.addresses[low.public]]),
        low.link(high.public, [nowhere]),
        return_exceptions=True,
    )
    await until(lambda: high.public in low.peers)
    assert there.is_open
    assert low.peers[high.public].is_open


async def test_addresses_are_tried_until_one_proves_to_be_the_peer(net):
    a, b, other = await net.node(), await net.node(), await net.node()

    async def say_nothing(reader, writer):  # which it holds: a writer that nobody has is closed
        await asyncio.Event().wait()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1")
    mute = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    began = time.monotonic()
    link = await a.link(b.public, ["127.0.0.1:1", net.addresses[other.public], mute, net.addresses[b.public]])
    assert link.peer == b.public
    assert time.monotonic() - began < 3
    silent.close()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]"])
async def test_a_private_address_is_dialled_by_leave_only(net, name):
    """Whoever writes an ad wrote where a customer's connections went, its own network's doors among them."""
    b = await net.node()
    port = net.addresses[b.public].rpartition(":")[2]
    a = await net.node(transport=TcpTls(allow_private=False))
    await refused_as(NotAllowed, "address", a.link(b.public, [f"{name}:{port}"]))
    assert not b.peers


async def test_a_clock_that_is_set_back_gets_another_certificate(net):
    """A machine that started in the future showed one that nobody took before that came."""
    ahead_s = [10 * 86_400.0]
    a, b = await net.node(), await net.node(unix_s=lambda: time.time() + ahead_s[0])
    await refused_as(BadPeer, "dates", a.link(b.public, [net.addresses[b.public]]))
    ahead_s[0] = 0.0
    assert (await a.link(b.public, [net.addresses[b.public]])).peer == b.public


async def test_a_failed_dial_says_why(net):
    a, other = await net.node(patience=QUICK), await net.node()
    nobody = Keys.generate().public
    await refused_as(LinkLost, "127.0.0.1:1", a.link(nobody, ["127.0.0.1:1"]))
    await refused_as(BadPeer, "npub", a.link(nobody, ["127.0.0.1:1", net.addresses[other.public]]))
    await refused_as(BadInput, "address", a.link(nobody, ["nowhere"]))
    await refused_as(BadInput, "addresses", a.link(nobody, []))
    await refused_as(BadInput, "public key", a.link(a.public, [net.addresses[a.public]]))

    async def say_nothing(reader, writer):  # which it holds: a writer that nobody has is closed
        await asyncio.Event().wait()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1")
    mute = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    await refused_as(TimedOut, "dial", a.link(nobody, [mute]))
    silent.close()


async def test_a_peer_that_lost_its_link_may_come_again(net):
    s, keys = await net.node(), Keys.generate()
    first = await net.proven(s, keys)
    old = s.peers[keys.public]
    first.writer.transport.pause_reading()  # its process is gone, but nobody told us
    second = await net.raw(s, keys)
    second.prove()
    assert (await second.document())["t"] == "welcome"
    assert not old.is_open
    assert s.peers[keys.public] is not old


async def test_a_second_connection_beside_a_living_link_is_refused(net):
    s, keys = await net.node(), Keys.generate()
    first = await net.proven(s, keys)
    answering = asyncio.create_task(first.document())
    second = await net.raw(s, keys)
    second.prove()
    assert (await refusal(second))["field"] == "link"
    assert s.peers[keys.public].is_open
    answering.cancel()


async def test_a_certificate_is_renewed_before_it_expires(net):
    now = time.time()
    node = Node(Keys.generate(), policy=LinkPolicy(unix_s=lambda: now))
    first = node._links.identity()
    assert node._links.identity() is first
    now += identity.LIFETIME_S - 3_600
    assert node._links.identity().expires_at_s > first.expires_at_s
