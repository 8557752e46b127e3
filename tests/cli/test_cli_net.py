"""What `nodewire net` shows of links and nodes."""

import json
import time
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from nodewire.cli import app, net
from nodewire.cli.braille import plane
from nodewire.cli.net_plot import plot
from nodewire.cli.output import console
from nodewire.errors import BadInput, LinkLost
from nodewire.wire import health_log
from nodewire.wire.health import Health
from nodewire.wire.health_log import NAME, HealthLog
from nodewire.wire.tcp_info import TcpInfo
from nodewire.wire.vivaldi import Claim

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
    gone.lost(now_s, LinkLost("gone", "silent \x1b[2J for 1 s"))
    log.write(Claim((5_000, 6_000, 700), 90_000), [near, gone], now_s)
    log.close()
    return tmp_path


def test_links_are_told_by_rung_round_trip_loss_and_bandwidth_and_what_was_lost_with_why(role):
    _, edges = health_log.read(role / "state")
    with console.capture() as captured:
        console.width = 160
        net._show_links(edges, {NEAR: "near"}, {NEAR: 38_000})
    near, gone = captured.get().splitlines()[1:3]
    assert " ".join(near.split()).startswith("near address 40.5 ms 1.0 ms 38.0 ms 0.50 % 20.0 Mbit/s cubic 0 open")
    assert gone.split()[0] == "abababab" and "silent" in gone
    assert "\x1b[2J" not in gone


def test_one_link_is_told_with_its_last_day(role):
    run = CliRunner().invoke(app, ["net", "--config", str(role / "role.toml"), "--peer", "aaaa", "--json"])
    told = json.loads(run.stdout)
    assert (told["peer"], told["open"], told["lost_ppm"]) == (NEAR, True, 5_000)
    assert [one["rtt"]["median_us"] for one in told["samples"]] == [40_500, 40_500]
    shown = CliRunner().invoke(app, ["net", "--config", str(role / "role.toml"), "--peer", "aaaa"]).stdout
    assert "RTT, 40.5 to 40.5 ms" in shown


@pytest.mark.parametrize("peer", ["a", "ff"])
def test_a_link_that_is_none_or_many_is_not_guessed(role, peer):
    run = CliRunner().invoke(app, ["net", "--config", str(role / "role.toml"), "--peer", peer])
    assert isinstance(run.exception, BadInput)


def test_a_daemon_that_was_killed_has_no_open_links(role):
    _, edges = health_log.read(role / "state")
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
