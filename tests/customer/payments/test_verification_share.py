"""The verification share of a job: what is paid for each chunk, as chunks come."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from nodewire.customer.payments.verification_share import Shares
from nodewire.errors import PaymentFailed
from nodewire.pay.bond.settlement import FLAT_UNITS, share_msat
from nodewire.protocol.job.plan import Verification
from tests.protocol import documents

SHARE_PPM = 150_000
CHUNK_MSAT = 1_000
UNIT_MSAT = 150


class Account:
    """Pays all, or raises or waits, by what a test says."""

    def __init__(self):
        self.paid, self.error, self.hold = [], None, None
        self.handed_over_at = None

    async def pay(self, request, chunk, amount_msat):
        if self.hold is not None:
            await self.hold.wait()
        if self.error is not None:
            raise self.error
        self.paid.append(amount_msat)
        return SimpleNamespace(amount_msat=amount_msat)

    def hand_over(self):
        pass

    async def handed_over(self):
        self.handed_over_at = len(self.paid)


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
def account():
    return Account()


def shares(account, *, budget_msat=10**9, grows=True):
    return Shares("cd" * 32, plan(budget_msat), account, grows=grows)


async def test_a_share_grows_with_the_context_beyond_its_first_chunks(account):
    job = Job(3, *[1] * 40)
    await shares(account).finish(job, 40)
    assert account.paid[0] == 3 * UNIT_MSAT
    flat = FLAT_UNITS - 3
    assert account.paid[1 : 1 + flat] == [UNIT_MSAT] * flat
    assert account.paid[1 + flat] > UNIT_MSAT and account.paid[flat:] == sorted(account.paid[flat:])
    assert sum(account.paid) == share_msat(plan(), 43)
    assert account.handed_over_at == 41  # before the job is settled


async def test_a_long_prompt_is_context_from_the_first_chunk_on(account):
    await shares(account).finish(Job(100, 1), 1)
    assert account.paid == [share_msat(plan(), 100), share_msat(plan(), 1, 101)]


async def test_calls_have_no_context_and_pay_the_same_each(account):
    await shares(account, grows=False).finish(Job(*[1] * 60), 59)
    assert account.paid == [UNIT_MSAT] * 60


async def test_a_payment_that_failed_is_one_that_counts(account):
    account.error = PaymentFailed("balance", "empty")
    made = shares(account)
    await made.finish(Job(30), 0)
    account.error = None
    await made.finish(Job(30, 1), 1)
    assert account.paid == [share_msat(plan(), 1, 31)]  # the ledger has the other


async def test_a_payment_that_is_cancelled_is_asked_for_again_as_it_was(account):
    made, job = shares(account), Job(30, 1)
    account.hold = asyncio.Event()
    following = asyncio.create_task(made.follow(job))
    await asyncio.sleep(0)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    account.hold.set()
    await made.finish(job, 1)
    assert account.paid == [share_msat(plan(), 30), share_msat(plan(), 1, 31)]
