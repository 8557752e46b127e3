"""What `nodewire net` shows of links and nodes."""

import json
import re
import sqlite3
import time
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from nodewire.cli import app
from nodewire.cli.common.braille import plane
from nodewire.cli.doctor import net
from nodewire.cli.doctor.net import NodeRow
from nodewire.cli.doctor.net_plot import plot
from nodewire.cli.output import console
from nodewire.errors import BadInput, LinkLost
from nodewire.nostr.keys import npub
from nodewire.protocol.market.coordinates import rtt_us
from nodewire.wire.measure import link_health_store
from nodewire.wire.measure.link_health import Health
from nodewire.wire.measure.link_health_store import NAME, HealthLog
from nodewire.wire.measure.vivaldi import Claim
from nodewire.wire.transport.tcp_info import TcpInfo

NEAR, GONE = "aa" * 32, "ab" * 32
points = st.lists(st.tuples(st.integers(-(10**7), 10**7), st.integers(-(10**7), 10**7)), max_size=30)


@pytest.fixture
def role(tmp_path):
    """A role's file, and what its daemon wrote a moment ago."""
    (tmp_path / "role.toml").write_text(
        'key = "k"\nstate = "state"\nrelays = ["ws://127.0.0.1:9"]\nblossom = ["http://b"]\n'
        f'committee = "38841:{"0" * 64}:main"\n[wallet]\nurl = "http://w"\ntoken_file = "t"\n'
    )
    (tmp_path / "state").mkdir()
    near, gone = Health(NEAR), Health(GONE)
    now_s = time.time()
    for health in (near, gone):
        health.opened(now_s - 300, rung="address", dialled=True, address="192.0.2.1:4000")
        health.looked([40_000, 41_000], TcpInfo(2_000, 10, 2_500_000), bytes_in=7, bytes_out=9, congestion="cubic")
    log = HealthLog(tmp_path / "state" / NAME)
    log.write(Claim((5_000, 6_000, 700), 90_000), [near, gone], now_s - 120)
    gone.lost(now_s, LinkLost(GONE, "silent \x1b[2J for 1 s"))
    log.write(Claim((5_000, 6_000, 700), 90_000), [near, gone], now_s)
    log.close()
    return tmp_path


@pytest.fixture
def market(monkeypatch):
    """Nodes of a snapshot; what no test here can have without a committee."""

    def there(**names):
        async def placed(role, claim):
            at = (25_000, 6_000, 1_000)
            return [
                NodeRow(key, name, "eu", at, rtt_us(claim.at, at) if claim else None) for name, key in names.items()
            ]

        monkeypatch.setattr(net, "_placed", placed)

    return there


def shown(role, *options, width=160):
    console.width = width
    run = CliRunner().invoke(app, ["net", "--config", str(role / "role.toml"), *options])
    if run.exception is not None and not isinstance(run.exception, SystemExit):
        raise run.exception
    return run.stdout


def rows(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_links_are_told_by_rung_round_trip_loss_and_bandwidth_and_what_was_lost_with_why(role, market):
    market(near=NEAR)
    told = shown(role)
    now, past = told.index("open now"), told.index("past, as they were at last")
    near, gone = rows(told[now:past])[2], rows(told[past:])[2]
    assert near.startswith("near aaaaaaaa address 40.5 ms 1.0 ms 21.7 ms 0.50 % 20.0 Mbit/s cubic 0 open for 5 min")
    assert gone.startswith("abababab address") and re.search(r"lost \d s ago", gone) and "silent" in gone
    assert "\x1b[2J" not in told and GONE not in told


def test_a_narrow_terminal_shows_who_it_is_and_no_column_without_a_figure(role, market):
    market(near=NEAR)
    with sqlite3.connect(role / "state" / NAME) as db:
        db.execute("UPDATE edges SET lost_ppm = NULL, bytes_per_s = 0, congestion = ''")
    told = shown(role, width=80)
    assert rows(told)[1] == "peer rung RTT jitter predicted lost"
    assert "near aaaaaaaa" in told and "…" not in told


def test_what_nodes_say_of_themselves_is_shown_as_such(role, market, monkeypatch):
    async def placed(role, claim):
        at = (25_000, 6_000, 1_000)
        rates = {"memory_bytes": 24 * 10**9, "flops_per_s": 91_500_000_000, "bytes_per_s": 12_000_000_000}
        return [NodeRow(NEAR, "near", "eu", at, None, **rates), NodeRow(GONE, "gone", "eu", at, None)]

    monkeypatch.setattr(net, "_placed", placed)
    told = rows(shown(role))
    assert any(line.endswith("near eu - 1.0 ms 24 GB 91.5 12.0") for line in told)
    assert any(line.endswith("gone eu - 1.0 ms - - -") for line in told)
    assert any("each node says that it measured" in line for line in told)


def test_links_of_a_command_that_has_ended_are_past_and_not_open(role, market):
    """A customer's links stayed "open" for half a minute after it had what it wanted."""
    market()
    log, near = HealthLog(role / "state" / NAME), Health(NEAR)
    near.opened(time.time() - 300, rung="address", dialled=True, address="192.0.2.1:4000")
    log.write(Claim((0, 0, 0), 0), [near], time.time() - 200, is_last=True)
    log.close()
    told = shown(role)
    assert "no link is open now" in told and "closed 3 min ago, when this role was done" in " ".join(rows(told))
    link = json.loads(shown(role, "--json"))["links"][0]
    assert (link["open"], link["state"]) == (False, "closed")
    assert 200 <= link["age_s"] < 260


def test_links_of_a_process_that_was_killed_are_past_since_it_wrote_last(role, market):
    market()
    log, near = HealthLog(role / "state" / NAME), Health(NEAR)
    near.opened(time.time() - 3_000, rung="address", dialled=True, address="192.0.2.1:4000")
    log.write(Claim((0, 0, 0), 0), [near], time.time() - 600)
    log.close()
    assert "last seen 10 min ago: this role's process was killed" in " ".join(rows(shown(role)))


def test_one_link_is_told_with_its_last_day(role, market):
    market(near=NEAR)
    told = json.loads(shown(role, "--peer", "aaaa", "--json"))
    assert (told["peer"], told["open"], told["lost_ppm"]) == (NEAR, True, 5_000)
    assert [one["rtt"]["median_us"] for one in told["samples"]] == [40_500, 40_500]
    assert (told["predicted_us"], told["unpredicted"]) == (21_700, None)
    text = shown(role, "--peer", "aaaa")
    assert "RTT, 40.5 to 40.5 ms" in text and "21.7 ms" in text


@pytest.mark.parametrize("peer", ["near", "near aaaaaaaa", "aaaaaaaa", NEAR, NEAR.upper(), npub(NEAR)])
def test_a_link_is_named_by_all_that_the_list_shows_and_by_npub(role, market, peer):
    market(near=NEAR)
    assert json.loads(shown(role, "--peer", peer, "--json"))["peer"] == NEAR


@pytest.mark.parametrize(("peer", "said"), [("a", "2 links fit"), ("ff", "no link fits"), ("nearly", "no link fits")])
def test_a_link_that_is_none_or_many_is_not_guessed(role, market, peer, said):
    market(near=NEAR)
    with pytest.raises(BadInput, match=f"{said}.*near aaaaaaaa.*abababab"):
        shown(role, "--peer", peer)


def test_why_no_round_trip_is_predicted_is_said(role, market):
    market(near=NEAR)
    assert "no live provider of the market" in shown(role, "--peer", "abab")
    with sqlite3.connect(role / "state" / NAME) as db:
        db.execute("DELETE FROM here")
    assert "not known yet where this node is" in shown(role, "--peer", "near")


def test_nodes_of_one_place_are_not_drawn_as_an_empty_plane(role, market, tmp_path):
    market(near=NEAR, beside="ac" * 32)
    with sqlite3.connect(role / "state" / NAME) as db:
        db.execute("UPDATE here SET x = 25000, y = 6000")
    chart = tmp_path / "plane.svg"
    run = CliRunner().invoke(app, ["net", "--config", str(role / "role.toml"), "--chart", str(chart)])
    assert "no plane is drawn" in run.stdout and "\u2800" not in run.stdout
    assert chart.exists() and "plane.svg: 2 nodes drawn" in run.stderr
    market()
    chart.unlink()
    run = CliRunner().invoke(app, ["net", "--config", str(role / "role.toml"), "--chart", str(chart)])
    assert not chart.exists() and "not written" in run.stderr


def test_nodes_that_are_apart_are_drawn(role, market):
    market(near=NEAR)
    assert "ms from left to right" in shown(role)  # here is elsewhere


def test_a_daemon_that_was_killed_has_no_open_links(role):
    _, edges = link_health_store.read(role / "state")
    near = next(edge for edge in edges if edge.peer == NEAR)
    assert near.is_open(time.time())
    assert not near.is_open(time.time() + 60)


@given(points)
def test_every_point_is_on_the_plane(found):
    lines, across = plane([(float(x), float(y), "x") for x, y in found], 20, 6)
    assert [len(line) for line in lines] == [20] * 6
    assert across > 0
    assert ("x" in "".join(lines)) is bool(found)


def test_the_plane_is_true_to_scale_and_its_y_axis_points_up():
    lines, across = plane([(0.0, 0.0, "o"), (39.0, 0.0, "e"), (0.0, 23.0, "n")], 20, 6)
    assert (lines[0][0], lines[5][0], lines[5][19]) == ("n", "o", "e")
    assert across == pytest.approx(39.0)


def test_the_chart_names_the_nodes(tmp_path):
    plot([("ada", (0, 0, 5_000)), ("b$e<a", (9_000, 4_000, 100))], (1, 1, 1), tmp_path / "plane.svg")
    texts = [e.text for e in ElementTree.parse(tmp_path / "plane.svg").iter() if e.tag.endswith("text")]
    assert {"ada", "b$e<a", "here"} <= set(texts)
