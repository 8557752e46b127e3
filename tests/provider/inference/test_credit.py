"""How long a provider waits for the last payments of a job."""

from __future__ import annotations

import asyncio

import pytest

from nodewire.errors import LinkLost, PaymentRequired
from nodewire.provider.inference import credit
from nodewire.provider.inference.credit import Credit


@pytest.fixture
def broken(monkeypatch):
    """What returns as soon as others have ended the job; and that they have."""
    monkeypatch.setattr(credit, "LAST_PAYMENTS_S", 0.05)
    event = asyncio.Event()

    async def failed():
        await event.wait()
        return LinkLost("ab", "gone")

    return failed, event


async def owed(patience_s):
    made = Credit(patience_s=patience_s)
    await made.due(0)
    return made


async def test_what_is_not_paid_within_the_patience_is_required(broken):
    failed, _ = broken
    for ended in (None, failed):
        with pytest.raises(PaymentRequired):
            await (await owed(0.05)).all_paid(ended)


async def test_a_job_that_others_have_ended_is_given_up_before(broken):
    failed, event = broken
    made = await owed(3_600)
    event.set()
    with pytest.raises(LinkLost):
        await asyncio.wait_for(made.all_paid(failed), 10)


async def test_who_pays_meanwhile_has_paid(broken):
    failed, event = broken
    made = await owed(3_600)
    event.set()
    waiting = asyncio.create_task(made.all_paid(failed))
    await asyncio.sleep(0)
    await made.paid(0)
    await waiting
    await made.all_paid(failed)  # nothing is due: it does not matter what has ended the job


async def test_a_wait_for_money_is_told_and_nothing_else_is():
    waits_s: list[float] = []
    made = Credit(patience_s=3_600, waited=waits_s.append)
    await made.due(0)
    await made.admit(credit.AHEAD - 1)
    assert waits_s == []
    waiting = asyncio.create_task(made.admit(credit.AHEAD))
    await asyncio.sleep(0.05)
    await made.paid(0)
    await waiting
    assert [0.04 < took_s < 30 for took_s in waits_s] == [True]
    await made.admit(credit.AHEAD)
    assert len(waits_s) == 1
    impatient = Credit(patience_s=0.01, waited=waits_s.append)
    with pytest.raises(PaymentRequired):
        await impatient.admit(credit.AHEAD)
    assert len(waits_s) == 2


@pytest.mark.parametrize(
    "waits", [lambda made: made.all_paid(), lambda made: made.admit(credit.AHEAD)], ids=["end", "chunk"]
)
async def test_who_pays_as_the_time_is_up_has_paid(waits):
    made = await owed(0.01)
    waiting = asyncio.create_task(waits(made))
    await asyncio.sleep(0)
    async with made._changed:  # what the payment waits for, and who waits for it, too, when its time is up
        paying = asyncio.create_task(made.paid(0))
        await asyncio.sleep(0.05)
    await paying
    await waiting
