"""A link's health in numbers, and the log of it that survives restarts."""

import contextlib
import socket
import sqlite3
import sys
import time

import pytest

from nodewire.errors import BadConfig, LinkLost
from nodewire.wire.measure import link_health_store
from nodewire.wire.measure.link_health import MAX_ENDINGS, Health, RoundTrips
from nodewire.wire.measure.link_health_store import KEPT_S, NAME, SAMPLE_S, HealthLog, kept
from nodewire.wire.measure.survey import Survey
from nodewire.wire.measure.vivaldi import Claim
from nodewire.wire.transport import tcp_info
from nodewire.wire.transport.tcp_info import TcpInfo

CLAIM = Claim((1_000, -2_000, 300), 90_000)


def opened(peer="peer", now_s=100.0):
    health = Health(peer)
    health.opened(now_s, rung="address", dialled=True, address="192.0.2.1:4000")
    return health


def looked(health, *, segments=0, again=0, rate=0, rtts=(20_000, 21_000, 20_500), bytes_in=0, bytes_out=0):
    info = TcpInfo(segments % 2**32, again % 2**32, rate)
    health.looked(rtts, info, bytes_in=bytes_in, bytes_out=bytes_out, congestion="cubic")


def test_round_trips_are_told_by_the_least_the_median_and_what_they_jump():
    assert RoundTrips.from_samples([20_000, 24_000, 21_000]) == RoundTrips(20_000, 21_000, 3_500)
    assert RoundTrips.from_samples([7]) == RoundTrips(7, 7, 0)
    assert RoundTrips.from_samples([]) is None


def test_loss_is_what_was_sent_again_of_the_newest_thousands_of_segments():
    health = opened()
    assert health.lost_ppm is None
    looked(health, segments=500, again=5)
    assert health.lost_ppm == 10_000
    looked(health, segments=100_500, again=5)
    looked(health, segments=200_500, again=5)
    assert health.lost_ppm == 0


def test_counters_go_on_over_links_and_over_32_bits():
    health = opened()
    looked(health, segments=400, again=1, bytes_out=1_000)
    health.lost(110, LinkLost("peer", "gone"))
    health.opened(120, rung="punch", dialled=False, address="192.0.2.1:4001")
    looked(health, segments=100, again=4, bytes_out=70)
    assert (health.bytes_out, health.links, health.rung) == (1_070, 2, "punch")
    assert health.lost_ppm == 5 * 10**6 / 500
    looked(health, segments=2**32 - 100, again=4, bytes_out=70)
    looked(health, segments=2**32 + 900, again=5, bytes_out=70)
    assert health.lost_ppm == 1_000


def test_of_a_peer_that_comes_and_goes_the_newest_endings_are_remembered():
    health = opened()
    for number in range(MAX_ENDINGS + 5):
        health.lost(number, LinkLost("peer", "x" * 10_000))
    assert len(health.endings) == MAX_ENDINGS and health.endings[0].at_s == 5
    assert len(health.endings[0].reason) <= 200


def test_what_was_written_is_read_by_another_process_and_after_a_restart(tmp_path):
    assert link_health_store.read(tmp_path) == (None, [])
    log = HealthLog(tmp_path / NAME)
    health, quiet = opened(), opened("quiet")
    looked(health, segments=1_000, again=1, rate=5_000_000, bytes_in=10, bytes_out=20)
    log.write(CLAIM, [health, quiet], 100)
    claim, (edge, other) = link_health_store.read(tmp_path)
    assert claim == CLAIM
    assert (edge.peer, edge.state, edge.rung, edge.rtt) == ("peer", "open", "address", RoundTrips(20_000, 20_500, 750))
    assert (edge.lost_ppm, edge.bytes_per_s, edge.bytes_in, edge.bytes_out) == (1_000, 5_000_000, 10, 20)
    assert (other.rtt, other.lost_ppm, other.ending) == (None, None, None)
    health.lost(105, LinkLost("peer", "silent for 1 s"))
    log.write(CLAIM, [health, quiet], 110)
    log.close()
    again = HealthLog(tmp_path / NAME)
    assert again.where() == CLAIM
    again.close()
    _, (edge, _) = link_health_store.read(tmp_path)
    assert (edge.state, edge.lost, edge.ending.reason, edge.seen_s) == ("lost", 1, "peer: silent for 1 s", 110)


def test_an_ending_stands_in_the_log_once(tmp_path):
    log, health = HealthLog(tmp_path / NAME), opened()
    for now_s in range(100, 160, 10):
        if now_s in (110, 130):
            health.lost(now_s, LinkLost("peer", f"at {now_s}"))
        log.write(CLAIM, [health], now_s)
    log.close()
    _, (edge,) = link_health_store.read(tmp_path)
    assert (edge.lost, edge.ending.at_s) == (2, 130)


def test_samples_are_taken_once_a_minute_and_kept_for_a_week(tmp_path, monkeypatch):
    log, health = HealthLog(tmp_path / NAME), opened()
    for now_s in range(1_000, 1_000 + 3 * SAMPLE_S, 10):
        looked(health)
        log.write(CLAIM, [health], now_s)
    found = link_health_store.samples(tmp_path, "peer", 0)
    assert [one.at_s for one in found] == [1_000, 1_000 + SAMPLE_S, 1_000 + 2 * SAMPLE_S]
    assert found[0].rtt == RoundTrips(20_000, 20_500, 750)
    assert link_health_store.samples(tmp_path, "nobody", 0) == []
    log.write(CLAIM, [health], 1_000 + KEPT_S + SAMPLE_S + 1)
    assert link_health_store.samples(tmp_path, "peer", 0)[0].at_s == 1_000 + 2 * SAMPLE_S
    log.close()


def test_the_log_does_not_grow_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(link_health_store, "MAX_ROWS", 50)
    monkeypatch.setattr(link_health_store, "MAX_EDGES", 20)
    log = HealthLog(tmp_path / NAME)
    for minute in range(30):
        healths = [opened(f"{minute}/{i}") for i in range(10)]
        for health in healths:
            health.lost(0, LinkLost("x", "y"))
            health.opened(0, rung="address", dialled=True, address="")
            health.lost(minute * 60, LinkLost("x", "y"))
        log.write(CLAIM, [*healths, opened("stays")], 10_000 + minute * 60)
    with sqlite3.connect(tmp_path / NAME) as db:
        for table, most in (("edges", 20), ("samples", 50), ("endings", 50)):
            (rows,) = db.execute(f"SELECT count(*) FROM {table}").fetchone()
            assert 0 < rows <= most + 20, table
    log.close()


def test_a_damaged_log_begins_anew_and_is_told_as_such_to_who_only_reads(tmp_path):
    (tmp_path / NAME).write_bytes(b"no database" * 1_000)
    with pytest.raises(BadConfig, match=NAME):
        link_health_store.read(tmp_path)
    HealthLog(tmp_path / NAME).close()
    assert link_health_store.read(tmp_path) == (None, [])


async def test_a_node_begins_where_it_was_and_goes_on_where_nothing_can_be_written(tmp_path):
    log = HealthLog(tmp_path / NAME)
    log.write(CLAIM, [], 1)
    log.close()
    survey = Survey("ab" * 32)
    async with kept(survey, tmp_path):
        assert survey.place.claim == CLAIM
    fresh = Survey("ab" * 32)
    before = fresh.place
    async with kept(fresh, tmp_path / "nowhere"):
        assert fresh.place == before


async def test_links_that_are_open_when_a_process_ends_are_closed_in_its_log(tmp_path):
    survey = Survey("ab" * 32)
    async with kept(survey, tmp_path, unix_s=lambda: 1_000.0):
        survey.health["peer"] = opened()
    _, (edge,) = link_health_store.read(tmp_path)
    assert (edge.state, edge.since_s, edge.lost, edge.is_open(1_001)) == ("closed", 1_000, 0, False)
    assert edge.age_s(1_060) == 60


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells")
def test_the_kernel_counts_what_a_connection_sent():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with socket.create_connection(listening.getsockname()) as one:
            other, _ = listening.accept()
            with other:
                before = tcp_info.read(one)
                for _ in range(8):
                    one.sendall(b"x" * 100_000)
                    other.recv(100_000, socket.MSG_WAITALL)
                after = tcp_info.read(one)
                assert before.segments == before.retransmitted == 0
                assert after.segments >= 8 and after.retransmitted <= after.segments
                assert after.bytes_per_s > 0
        assert tcp_info.read(one) is None  # closed


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells")
def test_the_kernel_says_whether_it_was_the_path_that_was_slow_and_when_the_peer_acknowledged_last():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        one = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
    with one, other:
        one.sendall(b"x")
        other.recv(1)
        quiet = tcp_info.read(one)
        one.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                one.send(b"x" * 100_000)
        for _ in range(40):
            other.recv(50_000)
        full = tcp_info.read(one)
        time.sleep(0.2)
        assert not quiet.is_path_limited and full.is_path_limited
        assert tcp_info.read(one).acked_ms >= 150 > full.acked_ms


def test_what_a_path_carries_is_known_from_when_it_was_what_limited():
    health = opened()
    for rate, limited in ((5, False), (2_500_000, True), (7, False)):
        health.looked([20_000], TcpInfo(1, 0, rate, limited), bytes_in=0, bytes_out=0, congestion="cubic")
    assert (health.path_bytes_per_s, health.bytes_per_s) == (2_500_000, 7)


def test_what_is_no_tcp_and_a_struct_of_an_old_kernel_say_nothing():
    left, right = socket.socketpair()
    with left, right:
        assert tcp_info.read(left) is None
    assert tcp_info.parse(bytes(160)) is None
