"""What a node finds out about its place, from what splices say that they see."""

import asyncio
import threading

import pytest

from nodewire.errors import NotFound
from nodewire.nostr.keys import Keys
from nodewire.protocol.encoding.address import SpliceAddress
from nodewire.protocol.market import splice_ad as splices
from nodewire.wire.nat import diagnosis, public_address, upnp
from nodewire.wire.nat.splice_client import message

OUTSIDE = "198.51.100.7"


@pytest.fixture
async def seen_as():
    """Makes splices that see every connection as they are told."""
    servers = []

    async def one(seen: str | None) -> SpliceAddress:
        async def serve(reader, writer):
            await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
            host, port = writer.get_extra_info("peername")
            writer.write(message({"seen": seen or f"{host}:{port}"}))
            writer.close()

        servers.append(await asyncio.start_server(serve, "127.0.0.1"))
        host, port = servers[-1].sockets[0].getsockname()
        return SpliceAddress(Keys.generate().public, f"{host}:{port}")

    yield one
    for server in servers:
        server.close()


@pytest.fixture
def router(monkeypatch):
    """The words of a router without UPnP."""

    async def refuses(port):
        raise NotFound("UPnP", "no router answers")

    monkeypatch.setattr(public_address.PortMapping, "open", refuses)


async def look(*addresses: SpliceAddress) -> public_address.Outlook:
    return await public_address.look(addresses, Keys.generate(), allow_private=True)


CASES = {
    "none": (None, None),
    "cone": (f"{OUTSIDE}:4000", f"{OUTSIDE}:4000"),
    "symmetric": (f"{OUTSIDE}:4000", f"{OUTSIDE}:4001"),
    "unknown": (f"{OUTSIDE}:4000",),
}


@pytest.mark.parametrize("nat", CASES)
async def test_the_kind_of_router_follows_from_what_splices_see(seen_as, router, nat):
    here = [await seen_as(seen) for seen in CASES[nat]]
    seen = await look(*here)
    assert seen.nat == nat
    assert set(seen.splices) == set(here)
    found, mapping = await public_address.addresses("0.0.0.0:4000", seen)
    assert mapping is None
    assert set(found) == {str(address) for address in here} | ({"127.0.0.1:4000"} if nat == "none" else set())


@pytest.mark.parametrize("first", [True, False])
async def test_a_splice_that_lies_does_not_hide_a_public_address(seen_as, router, first):
    """One of eight did, and the node announced that it could be met at the liar only."""
    honest, liar = await seen_as(None), await seen_as(f"{OUTSIDE}:4000")
    seen = await look(*((liar, honest) if first else (honest, liar)))
    found, _ = await public_address.addresses("0.0.0.0:4000", seen)
    assert found[0] == "127.0.0.1:4000"


async def test_a_router_that_never_ends_is_given_up(monkeypatch):
    """It may drip its words for ever; a provider would never have come up."""
    over = threading.Event()
    monkeypatch.setattr(upnp, "ROUTER_S", 0.05)
    monkeypatch.setattr(upnp.PortMapping, "_open", lambda port: over.wait(10))
    try:
        with pytest.raises(NotFound, match="does not come to an end"):
            await upnp.PortMapping.open(4_000)
    finally:
        over.set()


@pytest.mark.parametrize("said", ["Success", ""])
async def test_a_router_that_does_not_answer_is_not_quoted(monkeypatch, said):
    class Silent:
        def discover(self):
            raise Exception(said)  # as miniupnpc does where nobody answers

    monkeypatch.setattr("miniupnpc.UPnP", Silent)
    with pytest.raises(NotFound, match="no router answers"):
        await upnp.PortMapping.open(4_000)


async def test_splices_that_are_gone_are_not_announced(seen_as, router):
    gone, here = SpliceAddress(Keys.generate().public, "127.0.0.1:9"), await seen_as(f"{OUTSIDE}:4000")
    seen = await look(gone, here)
    assert seen.splices == (here,)
    assert (await look(gone)).refused
    assert await public_address.addresses("0.0.0.0:4000", await look(gone)) == ((), None)
    assert await public_address.addresses("0.0.0.0:4000", await look()) == ((), None)


class _Relays:
    """Ads that a relay has."""

    def __init__(self, *events):
        self._events = events

    async def fetch(self, filters, timeout_s=0.0):
        return list(self._events)


async def test_splices_are_found_by_their_ads_and_malformed_ads_passed_over():
    keys = Keys.generate()
    good = splices.Splice(name="s", at=("example.org:7790", "[2001:db8::1]:7790"), bytes_per_s=1, most_bytes=1)
    event = splices.build(keys, good, created_at=1)
    other = splices.build(keys, good.model_copy(update={"name": "t"}), created_at=1)
    bad = type(event)(other.id, other.pubkey, other.created_at, other.kind, event.tags, other.content, other.sig)
    assert set(await public_address.find(_Relays(bad, event))) == {SpliceAddress(keys.public, at) for at in good.at}


async def test_splices_are_drawn_from_all_that_were_found():
    """The newest eight were taken: a stranger that said so every minute was all that anybody knew."""
    events = [
        splices.build(
            Keys.generate(),
            splices.Splice(name="s", at=(f"example.org:{port}",), bytes_per_s=1, most_bytes=1),
            created_at=1,
        )
        for port in range(7_000, 7_100)
    ]
    drawn = {address for _ in range(8) for address in await public_address.find(_Relays(*events))}
    assert len(drawn) > public_address.MAX_ASKED


@pytest.mark.parametrize(
    ("nat", "rung"), [("none", "address"), ("cone", "punch"), ("symmetric", "splice"), ("unknown", "punch")]
)
async def test_an_operator_is_told_the_rung_and_what_to_change(seen_as, monkeypatch, router, nat, rung):
    monkeypatch.setattr(diagnosis.PortMapping, "open", public_address.PortMapping.open)
    here = [await seen_as(seen) for seen in CASES[nat]]
    found = await diagnosis.examine(_Relays(), Keys.generate(), 4_000, splices=here, allow_private=True)
    assert found.rung == rung
    assert rung == "address" or "TCP port 4000" in found.words


async def test_without_splices_no_way_is_known(router):
    found = await diagnosis.examine(_Relays(), Keys.generate(), 4_000)
    assert (found.rung, found.outlook.splices) == ("none", ())


async def test_a_private_address_is_not_called_public_by_leave_to_use_it(seen_as, router):
    found = await diagnosis.examine(
        _Relays(), Keys.generate(), 4_000, splices=[await seen_as(None)], allow_private=True
    )
    assert found.rung == "address"
    assert "127.0.0.1, which is not a public one" in found.words and "is public" not in found.words


@pytest.mark.parametrize("is_running", [True, False])
async def test_a_port_that_the_routers_daemon_keeps_open_is_not_closed_by_looking(seen_as, monkeypatch, is_running):
    """Doctor beside a running provider had the router forget the port until the lease was renewed."""
    closed = []

    class Opened:
        address = f"{OUTSIDE}:4000"

        async def close(self):
            closed.append(self.address)

    async def opens(port):
        return Opened()

    monkeypatch.setattr(diagnosis.PortMapping, "open", opens)
    found = await diagnosis.examine(
        _Relays(),
        Keys.generate(),
        4_000,
        splices=[await seen_as(f"{OUTSIDE}:4000")],
        allow_private=True,
        is_running=is_running,
    )
    assert found.rung == "upnp"
    assert closed == ([] if is_running else [Opened.address])
