"""A provider and its neighbours: words about inputs that were never sent, reports that were never true."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nodewire.errors import NotAllowed, Withheld
from nodewire.oracle.court.case import EpochDraw
from nodewire.oracle.court.court import Court
from nodewire.protocol.verification import sample as verification
from nodewire.protocol.verification.sample import Report
from nodewire.protocol.verification.statement import FrameStatement, digest_of, hashed
from nodewire.verify.recomputation import Equivocated
from tests.oracle.court.test_oracle_docket import COMMITTEE, SEATS
from tests.oracle.courtroom import MANIFEST as COURT_MANIFEST
from tests.oracle.courtroom import PROVIDER as JUDGED
from tests.oracle.courtroom import VERIFIER, sample_of
from tests.protocol.committee.actors import GENESIS_S, digest, keys
from tests.verify.test_recompute_inputs import HONEST, OTHER, PROVIDER, REQUEST, UPSTREAM, hashes, job

__all__ = ["job"]
FRIEND = keys("friend")


def word(by=UPSTREAM, frames=OTHER, **changes):
    place = {"request": REQUEST, "task": "driver", "edge": "hidden.0", "chunk": 1, "attempt": 0}
    return FrameStatement.sign(by, **{**place, **changes}, frames=digest_of(map(hashed, frames)))


@pytest.mark.parametrize(
    "said",
    [
        word(by=FRIEND),
        word(by=PROVIDER),
        word(request="ef" * 32),
        word(task="stage.1"),
        word(chunk=7),
        word(by=FRIEND).model_copy(update={"signer": UPSTREAM.public}),
        word(frames=HONEST),
    ],
    ids=["a friend's", "its own", "of another job", "of another task", "of another chunk", "forged", "of other frames"],
)
async def test_a_cheater_that_shows_what_it_would_have_liked_to_be_sent_is_judged_on_what_was_committed_to(job, said):
    """It kept other frames, for which its output would be right, and shows whatever word it has for them."""
    job.upstream(HONEST)
    job.received(OTHER)
    job.spools[PROVIDER.public].keep_sent(said)
    assert await job.computed() == hashes(HONEST)


async def test_a_producer_that_lends_its_name_to_a_lie_is_convicted_when_it_opens(job):
    """The neighbour signs afterwards what the cheater needs; its own root says what it really put out."""
    job.upstream(HONEST)
    job.received(OTHER, OTHER)
    with pytest.raises(Equivocated) as caught:
        await job.computed()
    assert caught.value.equivocation.culprit == UPSTREAM.public


async def test_a_producer_that_shows_no_frames_to_judges_leaves_the_blame_with_who_shows_no_word_for_them(job):
    job.upstream(HONEST)
    job.silent[UPSTREAM.public, "frames"] = NotAllowed("test", "not shown")
    with pytest.raises(Withheld):
        await job.computed()


def test_reports_for_and_against_change_nothing_at_any_oracle():
    """6844 by a drawn verifier, true or false, before or after: only certified roots and their openings count."""
    evidence = SimpleNamespace(can_recompute=True)
    nothing, market = SimpleNamespace(snapshots=dict), SimpleNamespace(committee=COMMITTEE)
    court = Court(
        SEATS[0].keys,
        nothing,
        market,
        nothing,
        evidence,
        nothing,
        SimpleNamespace(time_s=lambda: GENESIS_S + 0.0),
    )
    sample = sample_of(digest("root"))
    court._feed(EpochDraw(1, digest("body"), (sample,), {sample.request: COURT_MANIFEST}, {}))
    before = court.state
    for outcome, root in (("computed", sample.root), ("computed", digest("another")), ("withheld", "")):
        report = Report(
            committee=COMMITTEE.digest(), drawn=1, provider=JUDGED.public, request=sample.request, task=sample.task,
            chunk=sample.chunk, attempt=0, outcome=outcome, root=root, epoch=2 if root else 0,
        )  # fmt: skip
        court._came(verification.build_report(VERIFIER, report, created_at=1))
    assert court.state == before
