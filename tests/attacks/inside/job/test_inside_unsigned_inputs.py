"""Two of one hand that say of a neighbour what nobody can check: that it was the customer.

Whoever put something out that it did not compute (an earlier answer, say) passes if it is believed that it was sent
just what that comes of. So nobody is believed without the producer's signature, not even where the customer drives
itself.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodewire.errors import NotFound, Withheld
from nodewire.nostr.keys import Keys
from tests.protocol import documents
from tests.verify import test_recompute_inputs as inputs
from tests.verify.test_recompute_inputs import (
    FIRST,
    HONEST,
    JOB,
    OTHER,
    PLAN,
    SAMPLE,
    UPSTREAM,
    Job,
    hashes,
    job,
)

__all__ = ["job"]

CUSTOMER = documents.CUSTOMER
STRANGER = Keys(b"\x0c" * 32)


@pytest.mark.parametrize("by", [None, STRANGER], ids=["nobody", "a stranger"])
@pytest.mark.parametrize("last", [False, True])
async def test_inputs_that_their_producer_did_not_sign_are_not_those_that_are_judged(job, by, last):
    """The producer is alive, signed what it sent, and opens what it committed to; the cheater hides that word."""
    job.upstream(HONEST)
    job.received(OTHER, by and OTHER, by=by)
    assert await job.computed(last=last) == hashes(HONEST)


@pytest.fixture
def driven(tmp_path, job, monkeypatch):
    """A job whose customer drives it: its node keeps nothing that a judge could ask for."""
    tasks = (PLAN.tasks[0].model_copy(update={"provider": "local", "price_msat": 0}), *PLAN.tasks[1:])
    monkeypatch.setattr(inputs, "UPSTREAM", STRANGER)
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
