"""What a node makes of time in which it did not run."""

import asyncio
import time

import pytest

from nodewire.core.suspend_aware_timeout import timeout_awake


async def test_a_wait_ends_when_its_time_is_over():
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        async with timeout_awake(0.2):
            await asyncio.sleep(5)
    assert 0.15 < time.monotonic() - started < 2


async def test_a_standstill_is_no_time_in_which_somebody_could_have_answered():
    loop, answered = asyncio.get_running_loop(), asyncio.Event()
    async with timeout_awake(0.2):
        loop.call_soon(time.sleep, 0.5)
        loop.call_later(0.55, answered.set)
        await answered.wait()


async def test_whoever_answers_is_alive_for_a_node_that_stood_still_meanwhile(net):
    a, b = await net.pair()
    link = a.open_link(b.public)
    asking = asyncio.create_task(link.is_alive())
    await asyncio.sleep(0)
    time.sleep(1.5)  # longer than it waits for an answer
    assert await asking
    assert link.is_open
