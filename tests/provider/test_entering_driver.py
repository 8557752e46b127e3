"""A driver dies at a bad moment while it guesses: who enters builds on what some have closed, and others lack."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from nodewire.errors import LinkLost
from tests.llm.guessing_driver import make_guessing
from tests.provider.test_guessing_job import truth  # noqa: F401
from tests.provider.test_guessing_takeover import CHUNK, Ring, make_trees
from tests.provider.test_provider_job import folder  # noqa: F401


@pytest.mark.parametrize("policy", ["none", "sampled"])
@pytest.mark.parametrize(("chance", "chunk"), [(0.6, 2), (0.8, 3), (0.8, 4)])
async def test_a_driver_dies_that_has_closed_a_chunk_and_not_sent_its_last_tokens(
    folder,  # noqa: F811
    tmp_path,
    truth,  # noqa: F811
    chance,
    chunk,
    policy,
):
    """The close goes out before tokens do, and before those of the same frame. Who enters sends rows of that chunk once
    more, one by one, which are not the same bits as those of many at once."""
    ring = Ring(folder, tmp_path / "ring", truth, policy=policy, chance=chance, width=6, depth=8, lookahead=16)
    ring.make_guess = make_guessing
    async with ring:
        driver = ring.places[ring.plan.assignment("driver").provider]
        completed, put = driver.run.completed, driver.run._mailbox.put

        async def lose(frame):
            if frame.edge != "tokens" or frame.seq <= chunk * CHUNK - 4:
                await put(frame)

        async def dies(number, units, end, positions=None):
            await completed(number, units, end, positions)
            if number == chunk:
                while ring.open_chunk <= chunk:
                    await asyncio.sleep(0.005)
                ring.beside.append(asyncio.create_task(ring.kill(driver)))
                await asyncio.Event().wait()

        driver.run.completed, driver.run._mailbox.put = dies, lose
        assert await ring.tokens() == truth.ids
        assert [error for place in ring.places.values() for error in place.failed] == []
    assert ring.takeovers[0].replaced[0][3] == chunk + 1


@pytest.mark.parametrize("make", [make_guessing, make_trees])
@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.04])
async def test_where_a_driver_dies_amid_what_it_sent_again_nobody_is_to_blame(
    folder,  # noqa: F811
    tmp_path,
    truth,  # noqa: F811
    after_s,
    make,
):
    """The stage that entered lacks the rest, which the next driver has under other numbers: the job begins anew."""
    ring = Ring(folder, tmp_path / "ring", truth, policy="none", chance=0.7, width=2)
    ring.make_guess = make

    async def strike():
        while not ring.takeovers:
            await asyncio.sleep(0.005)
        await asyncio.sleep(after_s)
        await ring.kill(ring.places[ring.plan.assignment("driver").provider])

    async with ring:
        ring.beside.append(asyncio.create_task(strike()))
        with suppress(LinkLost):
            assert await ring.tokens("stage.0", at=33) == truth.ids
        failed = [error for place in ring.places.values() for error in place.failed]
        assert all(isinstance(error, LinkLost) for error in failed)
