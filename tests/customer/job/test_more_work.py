"""A provider that asks for more work than its ad says: the customer brings it, within bounds, and asks again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nodewire.customer.job.durations import JobTimes
from nodewire.customer.job.job import MAX_WORKED, Purchase
from nodewire.customer.job.provider_events import MoreWork
from nodewire.customer.job.retry_policy import may_begin
from nodewire.customer.planning.planner import MAX_POW_BITS
from nodewire.protocol.model.manifest import CUSTOMER
from tests.protocol import documents

PROVIDER = documents.PROVIDERS[1].public


class Asking(Purchase):
    """A purchase whose requests are refused for these bits, one after the other, and then ended."""

    def __init__(self, *bits):
        self.manifest = SimpleNamespace(
            mode="generate", chunk=64, edges=[SimpleNamespace(name="tokens", target=CUSTOMER)]
        )
        self.timing, self._bits, self.cancelled, self.asked = JobTimes(), [], 0, 0
        self._last_chunk, self._done = -1, False
        self._accept = lambda frame: frame
        self._script = [MoreWork(PROVIDER, one) for one in bits]
        payments = SimpleNamespace(count_owed=lambda: 0)
        self._running = SimpleNamespace(plan=documents.plan(), next=self._next, cancel=self._cancel, payments=payments)

    async def _next(self, deadline_s):
        if self._script:
            raise self._script.pop(0)
        raise EOFError

    def _cancel(self):
        self.cancelled += 1

    async def _end(self, error=None, *, pays=False):
        pass

    async def _begin(self):
        self.asked += 1


async def outcome(purchase):
    with pytest.raises((EOFError, MoreWork)) as ended:
        async for _ in purchase.outputs():
            pass
    return ended.value


async def test_a_request_is_made_again_with_the_work_that_is_asked_for():
    purchase = Asking(9, 12)
    assert isinstance(await outcome(purchase), EOFError)
    assert (purchase._bits, purchase.asked, purchase.cancelled) == ([9, 12], 2, 2)


@pytest.mark.parametrize("bits", [0, MAX_POW_BITS + 1, 256])
async def test_no_bits_and_too_many_end_the_job(bits):
    purchase = Asking(bits)
    error = await outcome(purchase)
    assert isinstance(error, MoreWork) and purchase.asked == 0
    assert error.by == PROVIDER and may_begin(error, SimpleNamespace(is_underway=True), failures=0, came=False)


async def test_who_asks_for_what_was_done_or_too_often_ends_the_job():
    purchase = Asking(9, 9)
    assert isinstance(await outcome(purchase), MoreWork) and purchase.asked == 1
    purchase = Asking(*range(1, MAX_WORKED + 2))
    assert isinstance(await outcome(purchase), MoreWork) and purchase.asked == MAX_WORKED


async def test_work_is_not_done_for_a_job_that_has_begun():
    purchase = Asking(9)
    purchase.timing.output()
    assert isinstance(await outcome(purchase), MoreWork)
