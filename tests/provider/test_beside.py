"""What is done beside a job's work."""

from __future__ import annotations

import asyncio
import inspect

from nodewire.errors import LinkLost
from nodewire.provider.beside import Beside


async def test_what_is_stopped_before_it_has_begun_never_begins_and_is_closed():
    beside, begun = Beside(), []

    async def work():
        begun.append(1)

    late = work()
    beside.spawn(late)
    await asyncio.gather(*beside.cancel(), return_exceptions=True)
    assert (begun, inspect.getcoroutinestate(late)) == ([], inspect.CORO_CLOSED)


async def test_the_first_fault_ends_the_job_and_stays():
    beside = Beside()

    async def fail(edge):
        raise LinkLost(edge, "gone")

    await asyncio.gather(beside.spawn(fail("a")), beside.spawn(fail("b")))
    assert beside.ended.is_set()
    assert isinstance(beside.fault, LinkLost) and beside.fault.field == "a"
