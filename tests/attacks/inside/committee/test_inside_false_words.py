"""A provider and its neighbours: words about inputs that were never sent."""

from __future__ import annotations

import pytest

from nodewire.errors import NotAllowed, Withheld
from nodewire.protocol.verification.statement import FrameStatement, digest_of, hashed
from nodewire.verify.recomputation import Equivocated
from tests.protocol.committee.actors import keys
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
