"""Two of one hand that say of a neighbour what nobody can check: that it was replaced, or that it was the customer.

Whoever put something out that it did not compute (an earlier answer, say) passes if it is believed that it was sent
just what that comes of. So nobody is believed without the producer's signature: not because of a takeover, and not
where the customer drives itself.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodewire.errors import NotFound, Withheld
from nodewire.protocol.takeover import Takeover, accepted, under
from tests.protocol import documents
from tests.verify import test_recompute_inputs as inputs
from tests.verify.test_recompute_inputs import (
    FIRST,
    HONEST,
    JOB,
    MANIFEST,
    OTHER,
    PLAN,
    REQUEST,
    SAMPLE,
    STANDBY,
    UPSTREAM,
    Job,
    hashes,
    job,
)

__all__ = ["job"]

CUSTOMER = documents.CUSTOMER


def takeover(first, attempt=1):
    replaced = (("driver", UPSTREAM.public, STANDBY.public, first),)
    previous = REQUEST if attempt == 1 else "ab" * 32
    return Takeover.sign(CUSTOMER, request=REQUEST, attempt=attempt, previous=previous, replaced=replaced)


@pytest.mark.parametrize("first", range(4))
async def test_a_takeover_that_came_after_the_draw_excuses_no_unsigned_inputs(job, first):
    """A driver, or a customer's key, signs it for the chunk that was drawn; nobody in the job ever saw it."""
    job.upstream(HONEST)  # alive, signed what it sent, and opens what it committed to
    job.received(OTHER)  # what the cheater would like to have been sent; it hides the word it has
    job.takeovers = (takeover(first),)
    assert await job.computed() == hashes(HONEST)
    assert await job.computed(last=True) == hashes(HONEST)


@pytest.mark.parametrize("first", range(4))
async def test_nor_if_the_standby_signs_them_too_for_it_was_not_there(job, first):
    """Three of one hand: the standby has committed to nothing, so it has nothing to lose."""
    job.upstream(HONEST)
    job.received(OTHER, OTHER, by=STANDBY)
    job.takeovers = (takeover(first),)
    assert await job.computed() == hashes(HONEST)
    assert await job.computed(last=True) == hashes(HONEST)


async def test_nor_does_a_second_one_after_a_true_one(job):
    """What was committed to at an attempt is judged by that attempt's takeover, whatever was replaced later."""
    entry = (("stage.1", documents.PROVIDERS[2].public, STANDBY.public, 1),)
    true = Takeover.sign(CUSTOMER, request=REQUEST, attempt=1, previous=REQUEST, replaced=entry)
    both = (("driver", UPSTREAM.public, STANDBY.public, 2), *entry)
    late = Takeover.sign(CUSTOMER, request=REQUEST, attempt=2, previous=true.digest(), replaced=both)
    job.upstream(HONEST)
    job.received(OTHER, OTHER, by=STANDBY)
    job.sample, job.takeovers = SAMPLE.model_copy(update={"attempt": 1}), (true, late)
    assert await job.computed(last=True) == hashes(HONEST)


def test_the_takeover_of_an_attempt_is_the_first_that_holds_all_of_it():
    one, three = takeover(2), takeover(2, attempt=3)
    assert [under((one, three), attempt) for attempt in range(5)] == [None, one, three, three, three]
    assert under((), 2) is None
    held, _ = accepted([three, one], REQUEST, PLAN, MANIFEST)
    assert held == [one, three]


@pytest.fixture
def driven(tmp_path, job, monkeypatch):
    """A job whose customer drives it: its node keeps nothing that a judge could ask for."""
    tasks = (PLAN.tasks[0].model_copy(update={"provider": "local", "standby": None, "price_msat": 0}), *PLAN.tasks[1:])
    monkeypatch.setattr(inputs, "UPSTREAM", STANDBY)
    return Job(
        tmp_path / "driven", request=replace(JOB, plan=PLAN.model_copy(update={"tasks": tasks, "chunk_msat": 2000}))
    )


@pytest.mark.parametrize("last", [False, True])
async def test_a_task_that_is_fed_by_a_local_driver_is_computed_again_on_what_that_signed(driven, last):
    driven.received(FIRST, FIRST, by=CUSTOMER)
    driven.received(HONEST, HONEST, by=CUSTOMER)
    assert await driven.computed(last=last) == hashes(HONEST)


@pytest.mark.parametrize("by", [None, UPSTREAM, documents.PROVIDERS[1]], ids=["nobody", "a stranger", "itself"])
async def test_without_the_customers_word_it_withholds(driven, by):
    """Today's honest provider commits to nothing without: it was unsure before, whatever was put out."""
    driven.received(FIRST, FIRST, by=CUSTOMER)
    driven.received(OTHER, by and OTHER, by=by)
    with pytest.raises(Withheld):
        await driven.computed(last=True)


async def test_nor_does_it_pass_with_other_frames_than_were_signed(driven):
    driven.received(FIRST, FIRST, by=CUSTOMER)
    driven.received(OTHER, HONEST, by=CUSTOMER)
    with pytest.raises(Withheld):
        await driven.computed(last=True)


async def test_what_the_neighbour_of_a_local_drivers_neighbour_was_sent_is_settled_as_anywhere(driven):
    """The customer's signature counts for the customer's own tasks, and no others."""
    driven.sample = SAMPLE.model_copy(update={"provider": documents.PROVIDERS[2].public, "task": "stage.1"})
    with pytest.raises((NotFound, Withheld)):
        await driven.computed(last=True)
