"""A provider that says nothing when all is done: each answer of its would take half a minute to be settled."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from nodewire.core.job_task_group import JobTaskGroup
from nodewire.customer.job import settlement
from nodewire.customer.job.job import Purchase
from nodewire.customer.job.provider_events import Answers
from nodewire.protocol.job import result
from tests.customer.paid_job import DRIVER, HONEST, LAST, REQUEST, asked, asks, closed, job
from tests.protocol import documents

SAID = result.ResultDetails(frames=1, compute_us=(1, 1))


@pytest.mark.parametrize("claims", [(DRIVER, HONEST), (DRIVER, HONEST, LAST)], ids=["no claim", "no result"])
async def test_who_is_waited_for_in_vain_is_left_out_of_the_next_plans(monkeypatch, claims):
    monkeypatch.setattr(settlement, "SETTLE_S", 0.1)
    payments, _ = job()
    await closed(payments, 0)
    for who in claims:
        await asked(payments, asks(who, 0))
    background, missed = JobTaskGroup(), []
    plan, manifest = documents.plan(), SimpleNamespace()
    answers = Answers(documents.CUSTOMER, REQUEST, plan, manifest, None, background, network="bcrt", chunks=4)
    answers.results = {DRIVER.public: SAID, HONEST.public: SAID}
    monkeypatch.setattr(answers.zap_receipts, "find_receipt", lambda paid: "ab" * 32)

    async def nothing(*given):
        pass

    async def none_given(*given):
        return []

    monkeypatch.setattr(settlement, "give_receipts", none_given)
    purchase = object.__new__(Purchase)
    purchase._last_chunk, purchase.receipts = 0, []
    purchase._running = SimpleNamespace(
        payments=payments,
        shares=SimpleNamespace(finish=nothing),
        sharing=asyncio.create_task(asyncio.sleep(60)),
        answers=answers,
        request=SimpleNamespace(id=REQUEST),
        plan=plan,
        publish=nothing,
    )
    purchase._session = SimpleNamespace(planner=SimpleNamespace(missed=missed.extend), keys=documents.CUSTOMER)
    await purchase._settle()
    assert missed == [LAST.public]
    purchase._running.sharing.cancel()
