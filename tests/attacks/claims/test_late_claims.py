"""Claims that are held back until the next job has been bought. What they cost was no longer counted by then."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from nodewire.customer.job import settlement
from nodewire.customer.job.durations import JobTimes
from nodewire.customer.job.job import Purchase
from nodewire.customer.payments.job_payments import JobPayments
from nodewire.errors import LinkLost, NoProvider
from nodewire.protocol.job.plan import Terms
from tests.customer.paid_job import DRIVER, HONEST, LAST, PRICE_MSAT, asks, closed, job
from tests.protocol import documents

BUDGET_MSAT = 100 * PRICE_MSAT


class Planner:
    """Draws no further plan, and keeps by which terms it was asked."""

    def __init__(self):
        self.asked: list[Terms] = []

    def missed(self, whom):
        pass

    async def draw(self, manifest, terms, **options):
        self.asked.append(terms)
        raise NoProvider("plan", "none")


class Funds:
    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        pass


def purchase(payments: JobPayments) -> tuple[Purchase, Planner]:
    """Its job is under way."""

    async def gone(error):
        return set()

    async def nothing(*args):
        pass

    made, planner = object.__new__(Purchase), Planner()
    running = {"is_open": True, "missed": set(), "cancel": lambda: None, "spent_msat": lambda: 0}
    made._running = SimpleNamespace(payments=payments, gone=gone, end=payments.close, **running)
    made._done, made._gone, made._earlier, made._paying, made.timing = False, set(), [], None, JobTimes()
    made._terms = Terms(max_chunk_msat=10**6, max_total_msat=BUDGET_MSAT)
    made._busy, made._wish, made._patience, made._kind, made.manifest = [], None, 1, None, documents.manifest()
    made._session = SimpleNamespace(
        planner=planner,
        beside=asyncio.create_task,
        prepare=nothing,
        settler=SimpleNamespace(begin=lambda: None),
        payer=SimpleNamespace(funds=Funds),
        log=SimpleNamespace(warning=lambda *said: None),
    )
    return made, planner


async def test_what_a_job_that_broke_off_may_still_cost_is_not_spent_on_the_next(monkeypatch):
    """Its providers ask when the time for last claims is over. The settler pays them, for the chunk was closed."""
    monkeypatch.setattr(settlement, "LATE_CLAIMS_S", 0.01)
    monkeypatch.setattr(settlement, "LINGER_S", 0.05)
    payments, payer = job()
    await closed(payments, 0)
    bought, _ = purchase(payments)
    bought.timing.output()
    error = LinkLost(HONEST.public, "gone")
    await bought.__aexit__(type(error), error, None)
    await bought.paid()
    left_msat = BUDGET_MSAT - bought.spent_msat
    for who in (DRIVER, HONEST, LAST):
        claim = asks(who, 0)
        assert payments.expects(claim)
        await asyncio.wait_for(payments.asked(claim), 10)
    assert left_msat + sum(payer.paid_msat.values()) == BUDGET_MSAT


@pytest.mark.parametrize("units", [1, 8])
async def test_a_plan_that_is_drawn_anew_has_what_the_refused_one_left_of_the_budget(units):
    """A driver closes a prompt while its accomplice says that it is busy: eight times each was a whole budget's."""
    payments, _ = job()
    await payments.closed(0, units)
    bought, planner = purchase(payments)
    with pytest.raises(NoProvider):
        await bought._begin()
    (terms,) = planner.asked
    assert terms.max_total_msat == BUDGET_MSAT - units * 3 * PRICE_MSAT
