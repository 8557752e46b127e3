"""What `nodewire doctor` says of the network, from this machine's own sockets."""

import json
import socket
from email.utils import formatdate
from time import time

import pytest
from aiohttp import web

from nodewire.cli.doctor import network, reach
from nodewire.cli.doctor.network import CLOCK_S, LOSSY_PPM
from nodewire.config import ProviderConfig
from nodewire.errors import BadConfig, LinkLost, NotFound
from nodewire.nostr.keys import Keys
from nodewire.store.state_lock import held
from nodewire.wire import Node
from nodewire.wire.measure.link_health import Health
from nodewire.wire.measure.link_health_store import NAME, HealthLog
from nodewire.wire.measure.vivaldi import Claim
from nodewire.wire.nat.splice_server import Splicer
from nodewire.wire.transport.tcp_info import TcpInfo


@pytest.fixture
async def store():
    """Starts servers whose clock is so many seconds ahead."""
    runners = []

    async def start(ahead_s):
        async def answer(request):
            return web.Response(status=404, headers={"Date": formatdate(time() + ahead_s, usegmt=True)})

        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", answer)
        runners.append(web.AppRunner(app))
        await runners[-1].setup()
        site = web.TCPSite(runners[-1], "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1:4000", "loopback"),
        ("192.168.1.7:4000", "private"),
        ("100.64.3.4:4000", "carrier"),
        ("0.0.0.0:4000", "any address"),
        ("[fe80::1]:4000", "private"),
    ],
)
async def test_an_announced_address_that_nobody_outside_reaches_is_a_fault_in_a_public_market(address, kind):
    with pytest.raises(BadConfig, match=kind):
        await reach._announced(address, is_open=True)
    assert "for a market of this network" in await reach._announced(address, is_open=False)


async def test_a_public_address_is_fine_but_for_its_port():
    assert (await reach._announced("198.41.0.4:4000", is_open=True)).startswith("a public address")
    assert "port 4000" in await reach._announced("198.41.0.4:4001", is_open=True, inside=4_000)
    with pytest.raises(BadConfig, match="no port"):
        await reach._announced("198.41.0.4:0", is_open=True)


async def test_a_name_that_leads_nowhere_and_what_is_no_address_are_told():
    with pytest.raises(NotFound, match=r"nobody\.invalid"):
        await reach._announced("nobody.invalid:4000", is_open=True)
    with pytest.raises(BadConfig, match="host:port"):
        await reach._announced("what", is_open=True)


async def test_a_port_is_free_or_its_daemon_answers_or_it_cannot_be_had(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(BadConfig, match="another program"):
            await network._listening(address, tmp_path)
        with held(tmp_path):
            assert "daemon is running" in await network._listening(address, tmp_path)
        with pytest.raises(BadConfig, match="another program"):
            await network._listening(address, tmp_path)
    assert await network._listening(address, tmp_path) == "free"
    assert "fixed one" in await network._listening("127.0.0.1:0", tmp_path)
    with pytest.raises(BadConfig, match="no address of this machine"):
        await network._listening("198.51.100.7:4000", tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(BadConfig, match="cannot listen"):
            await network._listening(f"127.0.0.1:{taken.getsockname()[1]}", tmp_path)


async def test_a_clock_is_held_against_the_relays_and_stores(store):
    assert "within" in await network._clock([await store(0)])
    with pytest.raises(BadConfig, match="behind"):
        await network._clock([await store(3 * CLOCK_S + 1)])
    with pytest.raises(BadConfig, match="ahead"):
        await network._clock([await store(-3 * CLOCK_S - 1)])
    assert "no relay or blob store" in await network._clock(["http://127.0.0.1:9"])
    right, wrong = await store(0), (await store(300)).replace("http://", "ws://")
    assert "within" in await network._clock([right, wrong, right + "/relay"])  # one liar of three is outvoted
    with pytest.raises(BadConfig, match="behind"):
        await network._clock([wrong])  # a relay's word counts, too


async def test_another_congestion_control_is_suggested_only_where_most_links_lose_much(tmp_path):
    assert await network._links(tmp_path) == "0, 0 of them open"
    log, healths = HealthLog(tmp_path / NAME), []
    for number, lost_ppm in enumerate((0, 2 * LOSSY_PPM, 2 * LOSSY_PPM)):
        healths.append(Health(f"{number}"))
        healths[-1].opened(1, rung="address", dialled=True, address="")
        info = TcpInfo(1_000_000, lost_ppm, 0)
        healths[-1].looked([], info, bytes_in=0, bytes_out=0, congestion="cubic")
    now_s = time()
    log.write(Claim((0, 0, 0), 0), healths[:2], now_s)
    assert await network._links(tmp_path) == "2, 2 of them open"
    healths[0].lost(11, LinkLost("0", "gone"))
    log.write(Claim((0, 0, 0), 0), healths, now_s)
    said = await network._links(tmp_path)
    assert said.startswith("3, 2 of them open; 2 lose more") and "bbr" in said
    log.write(Claim((0, 0, 0), 0), healths, now_s - 600)  # its daemon was killed then
    log.close()
    assert (await network._links(tmp_path)).startswith("3, 0 of them open")


async def test_the_kernel_is_never_a_fault_until_somebody_chooses_what_it_lacks():
    assert await network._kernel()
    assert await network._kernel("")
    with pytest.raises(BadConfig, match=r'^wire\.congestion: "bbrx": this kernel offers .*(cubic|reno)'):
        await network._kernel("bbrx")


@pytest.fixture
def provider(tmp_path):
    """A provider's configuration with these splices and [wire]."""

    def configured(*splices, listen="0.0.0.0:4000", **wire):
        fields = {"listen": listen, "splices": list(splices), "upnp": False, "private": True, **wire}
        lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in fields.items())
        (tmp_path / "provider.toml").write_text(
            'key = "k"\nstate = "s"\nrelays = ["ws://127.0.0.1:9"]\nblossom = ["http://b"]\n'
            f'committee = "38841:{"0" * 64}:main"\n'
            '[wallet]\nurl = "http://w"\ntoken_file = "t"\n'
            f"[wire]\n{lines}\n"
            f'[[serve]]\nmanifest = "38840:{"0" * 64}:tiny"\ntasks = ["driver"]\nprice_msat = 1\n'
        )
        return ProviderConfig.load(tmp_path / "provider.toml")

    return configured


@pytest.fixture
async def splice():
    """A splice of this network, as an address."""
    splicer = Splicer(Keys.generate().public, allow_private=True)
    yield f"splice:{splicer.public}@{await splicer.listen('127.0.0.1')}"
    await splicer.close()


@pytest.fixture
def free():
    """A port that is free."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


async def test_who_listens_everywhere_is_told_by_which_way_others_come(provider, splice, free):
    role = provider(splice, listen=f"0.0.0.0:{free}")
    assert {what for what, _ in network.checks(role)} >= {"ways for others to reach it"}
    found = await reach._ways(role)
    assert found.ok and found.said.startswith("dialled at its address")
    assert "public, at" not in found.said and "127.0.0.1, which is not a public one" in found.said
    assert found.said.endswith(f"a splice at {splice.partition('@')[2]} dialled you at 127.0.0.1:{free}: open")
    assert found.facts["rung"] == "address" and found.facts["dialled"]["outcome"] == "open"


async def test_who_listens_everywhere_and_has_no_way_is_told_what_to_open(provider):
    found = await reach._ways(provider(f"splice:{Keys.generate().public}@127.0.0.1:9"))
    assert not found.ok and found.facts["dialled"] is None
    assert "open TCP port 4000 in the router" in found.said and "was not tried" in found.said


async def test_an_announced_address_is_proved_by_a_splice_that_dials_it_back(provider, splice, free):
    role = provider(splice, listen=f"127.0.0.1:{free}")
    rows = dict(network.checks(role))
    found = await rows[f"wire, dialled at 127.0.0.1:{free} from outside"]()  # nobody runs: doctor listens itself
    assert found == (True, *found[1:]) and found.said.endswith(f"dialled you at 127.0.0.1:{free}: open")
    assert found.facts["dialled"] == {
        "by": splice.partition("@")[2],
        "at": f"127.0.0.1:{free}",
        "outcome": "open",
    }
    daemon = Node(Keys.from_file(role.key))
    await daemon.listen("127.0.0.1", free)
    assert (await reach._outside(role, f"127.0.0.1:{free}")).ok
    await daemon.close()


async def test_a_port_that_leads_nowhere_or_to_others_is_told_with_what_to_change(provider, splice, free):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        role = provider(splice, listen=f"127.0.0.1:{free}", announce=[f"127.0.0.1:{port}"])
        refused = await reach._outside(role, f"127.0.0.1:{port}")
        assert not refused.ok and refused.facts["dialled"]["outcome"] == "refused"
        assert "refused" in refused.said and "firewall" in refused.said and str(free) in refused.said
    stranger = Node(Keys.generate())
    await stranger.listen("127.0.0.1", port)
    found = await reach._outside(role, f"127.0.0.1:{port}")
    assert not found.ok and "another machine, or another program" in found.said
    await stranger.close()


@pytest.mark.parametrize(
    ("wire", "why"),
    [
        ({"listen": "127.0.0.1:0"}, "a free port is taken"),
        ({"announce": ["127.0.0.1:443"]}, "no port below 1024"),
        ({"announce": ["127.0.0.2:4000"]}, "dial it nowhere else"),
    ],
)
async def test_what_no_splice_can_try_is_said_not_to_have_been_tried(provider, splice, free, wire, why):
    role = provider(splice, **{"listen": f"127.0.0.1:{free}", **wire})
    found = await reach._outside(role, (*role.wire.announce, role.wire.listen)[0])
    assert found.ok and found.facts["dialled"] is None
    assert "was not tried" in found.said and why in found.said


async def test_without_a_splice_at_hand_it_was_not_tried(provider, free):
    role = provider(listen=f"127.0.0.1:{free}")  # nor a relay that could name one
    found = await reach._outside(role, f"127.0.0.1:{free}")
    assert found.ok and "was not tried: no splice is known" in found.said
