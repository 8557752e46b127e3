"""The verification share of a job: what is zapped for each chunk, and what the budget keeps for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from nodewire.customer.payments import verification_share as module
from nodewire.customer.payments.purse import Purse
from nodewire.customer.payments.verification_share import Shares
from nodewire.errors import PaymentFailed
from nodewire.pay.bond.settlement import FLAT_UNITS, share_msat
from nodewire.protocol.job.plan import Verification
from tests.protocol import documents

SHARE_PPM = 150_000
CHUNK_MSAT = 1_000
UNIT_MSAT = 150


class Payer:
    """Pays all, or raises or waits, by what a test says."""

    def __init__(self):
        self.zapped, self.error, self.hold = [], None, None

    async def pay(self, key, amount_msat, fetch, *, relays, lnurl, terms):
        assert terms.alone  # a pot is filled to the msat
        if self.hold is not None:
            await self.hold.wait()
        if self.error is not None:
            raise self.error
        self.zapped.append(amount_msat)
        return SimpleNamespace(amount_msat=amount_msat)


class Job:
    """Its chunks, by units."""

    def __init__(self, *units):
        self._units = units

    def units(self, chunk):
        return self._units[chunk]

    async def payable(self, chunk):
        if chunk >= len(self._units):
            await asyncio.Event().wait()


def plan(budget_msat=10**9):
    terms = documents.plan().terms.model_copy(update={"max_total_msat": budget_msat})
    verified = Verification(policy="sampled", rate_ppm=50_000, share_ppm=SHARE_PPM)
    return documents.plan().model_copy(update={"chunk_msat": CHUNK_MSAT, "terms": terms, "verification": verified})


@pytest.fixture
def payer(monkeypatch):
    monkeypatch.setattr(module.lnurl, "over_lnurl", lambda *about, **how: None)
    monkeypatch.setattr(module.lnurl, "encode", lambda url: url)
    return Payer()


def shares(payer, *, budget_msat=10**9, grows=True):
    async def holder():
        return SimpleNamespace(public="ab" * 32, lnurl="https://holder.example")

    purse = Purse(payer, (), "", False)
    return Shares("cd" * 32, plan(budget_msat), purse, SimpleNamespace(holder=holder), grows=grows)


async def test_a_share_grows_with_the_context_beyond_its_first_chunks(payer):
    job = Job(3, *[1] * 40)
    await shares(payer).finish(job, 40)
    assert payer.zapped[0] == 3 * UNIT_MSAT
    flat = FLAT_UNITS - 3
    assert payer.zapped[1 : 1 + flat] == [UNIT_MSAT] * flat
    assert payer.zapped[1 + flat] > UNIT_MSAT and payer.zapped[flat:] == sorted(payer.zapped[flat:])
    assert sum(payer.zapped) == share_msat(plan(), 43)


async def test_a_long_prompt_is_context_from_the_first_chunk_on(payer):
    await shares(payer).finish(Job(100, 1), 1)
    assert payer.zapped == [share_msat(plan(), 100), share_msat(plan(), 1, 101)]


async def test_calls_have_no_context_and_pay_the_same_each(payer):
    await shares(payer, grows=False).finish(Job(*[1] * 60), 59)
    assert payer.zapped == [UNIT_MSAT] * 60


async def test_a_payment_that_failed_is_one_that_counts(payer):
    payer.error = PaymentFailed("balance", "empty")
    made = shares(payer)
    await made.finish(Job(30), 0)
    payer.error = None
    await made.finish(Job(30, 1), 1)
    assert payer.zapped == [share_msat(plan(), 1, 31)]  # the ledger has the other


async def test_a_payment_that_is_cancelled_is_asked_for_again_as_it_was(payer):
    made, job = shares(payer), Job(30, 1)
    payer.hold = asyncio.Event()
    following = asyncio.create_task(made.follow(job))
    await asyncio.sleep(0)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    payer.hold.set()
    await made.finish(job, 1)
    assert payer.zapped == [share_msat(plan(), 30), share_msat(plan(), 1, 31)]
