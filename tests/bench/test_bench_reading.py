"""What the benches make of what they saw: figures, books, acceptance lines."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import dataclass

import pytest

from bench import byzantine, chaos, chaos_outcome, soak
from bench.books import Books, Verdict
from bench.jobs import Generated
from bench.report import Report, percentile, spread
from nodewire.protocol import kinds
from nodewire.protocol.plan import Assignment

NORMAL = chaos_outcome.Normal(step_ms=10.0, first_ms=50.0)


def outcome(kind="kill", takeovers=()):
    return chaos_outcome.Outcome(chaos_outcome.Fault(kind, 0, 3, 0.5), takeovers=list(takeovers))


def generated(*moments):
    return Generated("x", 100.0, moments=list(moments), said={})


def measured(seen, done, struck, stood=100.0):
    """The unix clock stands at 1000 when the monotonic one stands at 100."""
    chaos_outcome.measured(seen, done, struck, struck + 900.0, stood, NORMAL)


def test_the_stall_is_the_longest_silence_that_ends_after_the_fault():
    seen = outcome(takeovers=[{"detected_ms": 1_000_060}])
    measured(seen, generated(100.02, 100.03, 100.05, 100.06, 100.36, 100.37), struck=100.05)
    assert seen.stall_ms == pytest.approx(300)
    assert seen.detection_ms == pytest.approx(10)
    assert seen.resume_ms == pytest.approx(300 - 10 - 10)


def test_detection_beyond_the_bound_is_not_subtracted():
    seen = outcome(takeovers=[{"detected_ms": 1_000_450}])
    measured(seen, generated(100.02, 100.05, 101.05), struck=100.05)
    assert seen.detection_ms == pytest.approx(400)
    assert seen.resume_ms == pytest.approx(1000 - chaos_outcome.CLOSED_MS - 10)


def test_before_the_first_token_the_usual_time_to_it_is_subtracted():
    seen = outcome("stop", [{"detected_ms": 1_000_910}])
    measured(seen, generated(101.2, 101.21), struck=100.01)
    assert seen.stall_ms == pytest.approx(1200)
    assert seen.detection_ms == pytest.approx(900)
    assert seen.resume_ms == pytest.approx(1200 - 900 - 50)


def test_a_fault_that_nobody_had_to_notice_costs_nothing():
    seen = outcome()
    measured(seen, generated(100.01, 100.02, 100.03), struck=100.015)
    assert seen.detection_ms == 0
    assert seen.resume_ms == pytest.approx(0, abs=1e-6)


def test_a_long_stall_without_a_takeover_has_no_figure():
    seen = outcome()
    measured(seen, generated(100.01, 102.0), struck=100.015)
    assert seen.resume_ms is None


@dataclass
class PlanOf:
    tasks: tuple[Assignment, ...]


PLAN = PlanOf(
    (
        Assignment(task="driver", provider="a" * 64, standby="b" * 64, price_msat=1),
        Assignment(task="stage.0", provider="c" * 64, standby="d" * 64, price_msat=1),
    )
)


def debt(payee, chunk, attempt):
    return {"payee": payee * 64, "chunk": chunk, "attempt": attempt, "amount_msat": 1}


def test_nothing_is_paid_twice_when_a_standby_goes_on_where_the_dead_node_stopped():
    paid = [debt("a", 0, 0), debt("c", 0, 0), debt("a", 1, 1), debt("d", 1, 1)]
    takeovers = {1: [("stage.0", "c" * 64, "d" * 64, 0)]}
    assert chaos_outcome.paid_twice(paid, PLAN, takeovers, "c" * 64) == []
    assert chaos_outcome.paid_twice(paid, PLAN, {}, "c" * 64) == []


def test_a_chunk_that_both_the_dead_node_and_its_standby_were_paid_for_is_found():
    paid = [debt("c", 0, 0), debt("d", 0, 1)]
    takeovers = {1: [("stage.0", "c" * 64, "d" * 64, 0)]}
    assert chaos_outcome.paid_twice(paid, PLAN, takeovers, "") == [(0, "stage.0")]
    assert chaos_outcome.paid_twice(paid, PLAN, {}, "c" * 64) == [(0, "stage.0")]


def test_a_chunk_before_the_standbys_first_is_the_dead_nodes_whenever_it_is_paid():
    takeovers = {1: [("stage.0", "c" * 64, "d" * 64, 1)]}
    assert chaos_outcome.paid_twice([debt("c", 0, 1), debt("d", 1, 1)], PLAN, takeovers, "") == []
    assert chaos_outcome.paid_twice([debt("c", 0, 0), debt("c", 0, 1)], PLAN, takeovers, "") == [(0, "stage.0")]


def test_a_node_that_stays_and_is_paid_again_after_a_takeover_is_found():
    paid = [debt("a", 0, 0), debt("a", 0, 1)]
    takeovers = {1: [("stage.0", "c" * 64, "d" * 64, 0)]}
    assert chaos_outcome.paid_twice(paid, PLAN, takeovers, "") == [(0, "driver")]


def test_generations_that_did_not_go_on_count_against_the_percentile():
    report = Report("chaos", 1, quick=True)
    fine, dead = outcome(), outcome()
    fine.victim = dead.victim = "provider-0"
    fine.resume_ms, fine.identical = 1.0, True
    chaos._judge(report, chaos_outcome.Part(1, [fine, dead]), 0, [], {})
    assert report.summary["identical"] == {"value": 1, "bound": "== 2", "ok": False}
    assert report.summary["resume_ms_p95"] == {"value": None, "bound": "<= 500", "ok": False}
    guessed = Report("chaos", 1, quick=True)
    fine.stall_ms = 90.0
    chaos._judge(guessed, chaos_outcome.Part(8, [fine, dead]), 0, [], {})
    assert guessed.summary["stall_ms_p50"] == {"value": 90.0, "bound": "<= 400", "ok": True}
    assert guessed.summary["stall_ms_p95"] == {"value": None, "bound": "<= 1000", "ok": False}
    assert report.summary["double_paid"]["ok"]


def test_a_line_that_could_not_be_measured_is_not_ok():
    report = Report("x", 1, quick=True)
    assert not report.ok
    report.line("fine", 1, "<=", 1)
    assert report.ok
    report.line("unknown", None, "==", 0)
    assert not report.ok


def test_percentiles_are_nearest_ranks():
    assert percentile([], 95) is None
    assert percentile(list(range(1, 101)), 95) == 95
    assert percentile([3, 1, 2], 50) == 2
    assert spread([2.0, 1.0]) == {"n": 2, "p50": 1.0, "p95": 2.0, "max": 2.0}


@dataclass
class EventOf:
    content: str
    created_at: int = 7
    kind: int = kinds.CERTIFICATE


CHEATER, CAREFUL, LIAR = "e" * 64, "f" * 64, "9" * 64


def verdict(outcome="fail", culprit=CHEATER, request="1" * 64, at_s=7):
    said = {"request": request, "task": "stage.0", "chunk": 0, "provider": CHEATER, "outcome": outcome}
    said |= {"culprit": culprit, "verifiers": [[CAREFUL, True], [LIAR, False]]}
    return EventOf(json.dumps({"v": 1, "verdict": said, "votes": []}), at_s)


def test_a_verdict_is_read_from_a_certificate_and_an_epoch_is_not_one():
    read = Verdict.read(verdict())
    assert read is not None
    assert (read.convicted, read.verifiers, read.certified_s) == ((CHEATER,), (CAREFUL,), 7)
    assert Verdict.read(EventOf(json.dumps({"v": 1, "body": {}}))) is None
    assert Verdict.read(EventOf("")) is None


def test_one_certificate_of_several_oracles_is_one_verdict_since_the_first():
    books = Books.read([verdict(at_s=9), verdict(at_s=8), verdict("pass", "", request="2" * 64)])
    assert books.outcomes() == {"pass": 1, "fail": 1, "withheld": 0, "unsure": 0}
    assert [v.certified_s for v in books.convictions(CHEATER)] == [8]
    assert books.convicted() == {CHEATER}


def test_a_verifier_that_lied_is_convicted_by_a_pass():
    assert Books.read([verdict("pass", LIAR)]).convicted() == {LIAR}


@dataclass
class RequestOf:
    id: str
    customer: str
    created_at: int


def test_requests_belong_to_the_job_that_their_customer_ran_then():
    jobs = [byzantine.Bought("ann", 10.7), byzantine.Bought("ann", 20.2), byzantine.Bought("bob", 10.0)]
    books = Books(requests=[RequestOf("a", "ann", 10), RequestOf("b", "ann", 19), RequestOf("c", "ann", 21)])
    byzantine._attribute(books, jobs)
    assert [job.requests for job in jobs] == [{"a", "b"}, {"c"}, set()]
    assert books.jobs_until(19) == 2


def sampled(number, **measures):
    return soak.Sample(2.0 * number, 3 * number, {"provider-0": dict(measures), "provider-0/0": {"rss_kb": 5.0}})


def test_a_soak_tells_what_grows_with_every_job_from_what_came_to_rest():
    # memory rises until the warm-up is over, the books by 10 KB a job for ever
    samples = [sampled(n, rss_kb=min(n, 8), books_kb=30.0 * n) for n in range(24)]
    growth, jobs, seconds = soak.grown(samples)
    assert growth["provider"]["rss_kb"] == (0.0, "provider-0")
    assert growth["worker"]["rss_kb"] == (0.0, "provider-0/0")
    assert growth["provider"]["books_kb"][0] / jobs == pytest.approx(10)
    assert seconds == pytest.approx(2 / 3 * jobs)
    assert soak.Bound(5, job=2, epoch=3).of(10, 4) == 5 + 20 + 12


def test_a_worker_that_was_replaced_is_nothing_that_grew():
    samples = [sampled(n, rss_kb=1) for n in range(12)]
    del samples[-1].seen["provider-0/0"]
    assert "worker" not in soak.grown(samples)[0]


def test_a_soak_counts_what_a_database_holds_whatever_its_log_and_its_holes(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE t (x)")
        db.execute("INSERT INTO t VALUES (zeroblob(1000000))")
        assert 1_000_000 < soak._used_bytes(tmp_path / "ledger.db") < 1_100_000
        db.execute("DELETE FROM t")
        assert soak._used_bytes(tmp_path / "ledger.db") < 50_000
        assert soak._used_bytes(tmp_path / "ledger.db-wal") == 0
