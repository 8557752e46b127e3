"""What the benches make of what they saw: figures, books, acceptance lines."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import dataclass

import pytest

from bench.market import chaos, chaos_outcome, soak
from bench.report import Report, percentile, spread
from bench.tools.books import Books, Verdict
from bench.tools.jobs import Generated
from bench.verification import byzantine
from nodewire.protocol import kinds


def outcome(kind="kill", stall_ms=None):
    found = chaos_outcome.Outcome(chaos_outcome.Fault(kind, 0, 3, 0.5), victim="provider-0")
    found.stall_ms = stall_ms
    return found


def generated(*moments):
    return Generated("x", 100.0, moments=list(moments), said={})


def test_the_stall_is_the_longest_silence_that_ends_after_the_fault():
    done = generated(100.02, 100.03, 100.05, 100.06, 100.36, 100.37)
    assert chaos_outcome.stall_ms(done, struck=100.05, stood=100.0) == pytest.approx(300)


def test_before_the_first_token_the_stall_counts_from_when_the_request_stood():
    assert chaos_outcome.stall_ms(generated(101.2, 101.21), struck=100.01, stood=100.0) == pytest.approx(1200)


def test_a_silence_that_ended_before_the_fault_is_none_of_its_stall():
    assert chaos_outcome.stall_ms(generated(100.0, 100.9, 100.91), struck=100.905, stood=99.0) == pytest.approx(10)
    assert chaos_outcome.stall_ms(generated(100.0), struck=100.5, stood=99.0) is None


def debt(payee, chunk):
    return {"payee": payee * 64, "chunk": chunk, "amount_msat": 1}


def test_a_chunk_that_one_node_was_paid_for_twice_is_found():
    assert chaos_outcome.paid_twice([debt("a", 0), debt("c", 0), debt("a", 1)]) == []
    assert chaos_outcome.paid_twice([debt("a", 0), debt("c", 0), debt("a", 0)]) == [(0, "a" * 64)]


def test_generations_that_did_not_go_on_count_against_the_percentile():
    report = Report("chaos", 1, quick=True)
    fine, dead, silent = outcome(stall_ms=90.0), outcome(), outcome("stop", 1_400.0)
    fine.identical = silent.identical = True
    chaos._judge(report, chaos_outcome.Part(1, [fine, dead, silent]), 0, [], {})
    assert report.summary["identical"] == {"value": 2, "bound": "== 3", "ok": False}
    assert report.summary["kill_stall_ms_p95"] == {"value": None, "bound": "<= 350", "ok": False}
    assert report.summary["stop_stall_ms_p95"] == {"value": 1400.0, "bound": "<= 1850", "ok": True}
    assert report.summary["double_paid"]["ok"]
    guessed = Report("chaos", 1, quick=True)
    chaos._judge(guessed, chaos_outcome.Part(8, [fine, dead]), 0, [], {})
    assert guessed.summary["kill_stall_ms_p50"] == {"value": 90.0, "bound": "<= 400", "ok": True}
    assert guessed.summary["kill_stall_ms_p95"] == {"value": None, "bound": "<= 1000", "ok": False}


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
