"""Stages that two compute, amid deaths, on real links."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from nodewire.errors import LinkLost
from tests.provider.ring import CHUNK, Slow, make_trees
from tests.provider.test_guessing_job import truth  # noqa: F401
from tests.provider.test_lying_driver import Noisy, Ring, computed_alike, ends
from tests.provider.test_provider_job import folder  # noqa: F401


class Behind(Slow):
    """A worker that takes its time."""

    async def receive(self, task, session, frame):
        await asyncio.sleep(0.02)
        return await super().receive(task, session, frame)


class Hedged(Ring):
    """Some stages have a hedge; one of them may be slow, or compute something else at some positions."""

    def __init__(self, *args, hedge, slow=None, liar=None, positions=range(0), **kwargs):
        super().__init__(*args, **kwargs)
        self.make_guess = make_trees
        terms = self.plan.terms.model_copy(update={"hedge": hedge})
        self.plan = self.plan.model_copy(update={"terms": terms})
        self.request = replace(self.request, plan=self.plan)
        self.slow, self.liar, self.positions = slow, liar, positions

    async def __aenter__(self):
        await super().__aenter__()
        for task, hedge in self.plan.hedges.items():
            place = self.places[hedge]
            if task == self.liar:
                self.make_guess = self.make_noise
            await self.enter(place)
            self.make_guess = make_trees
            if task == self.slow:
                worker = place.run._worker
                worker._worker._worker = Behind(worker._worker._worker.actors)
        return self

    def make_noise(self, manifest, actors, guess, *, depth, width):
        make_trees(manifest, actors, guess, depth=depth, width=width)
        actors[self.liar] = Noisy(actors[self.liar], self.positions)

    def chunks(self, who, task):
        return {root.chunk for by, root in self.committed if (by, root.task) == (who, task)}


def all_chunks(truth):  # noqa: F811
    return set(range(1 + -(-(len(truth.ids) - 1) // CHUNK)))


@pytest.mark.parametrize("strike", [("stage.0",), ("stage.1",), ("stage.0", "stage.1"), ("driver", "stage.1")])
async def test_neighbours_that_are_both_hedged_may_die_one_by_one_and_together(
    folder,  # noqa: F811
    tmp_path,
    truth,  # noqa: F811
    strike,
):
    """A hedge is fed by whoever has the stage before it, and that may be a hedge itself."""
    hedge = ("stage.0", "stage.1")
    async with Hedged(folder, tmp_path / "ring", truth, policy="sampled", chance=0.8, hedge=hedge) as ring:
        left, said = await ends(ring, *strike, at=40)
        if "driver" in strike:  # frames that a hedge lacks may be gone with it
            assert all(isinstance(error, LinkLost) for error in said)
            return
        assert said == []
        for task in hedge:
            assigned = ring.plan.assignment(task)
            assert ring.chunks(assigned.standby, task) == all_chunks(truth)
            if task not in strike:
                assert ring.chunks(assigned.provider, task) == all_chunks(truth)
        assert all(computed_alike(ring, place) for place in left)


async def test_a_hedge_that_lags_when_it_is_called_goes_on_from_where_it_is(folder, tmp_path, truth):  # noqa: F811
    ring = Hedged(folder, tmp_path / "ring", truth, policy="sampled", chance=0.8, hedge=("stage.1",), slow="stage.1")
    async with ring:
        assert await asyncio.wait_for(ring.tokens("stage.1", at=40), 60) == truth.ids
        hedge = ring.plan.hedges["stage.1"]
        async with asyncio.timeout(60):
            while ring.chunks(hedge, "stage.1") != all_chunks(truth):
                await asyncio.sleep(0.02)
        assert [error for place in ring.places.values() for error in place.failed] == []


@pytest.mark.parametrize("at", [5, 40])
async def test_a_hedge_that_dies_with_its_provider_leaves_nobody_and_nobody_to_blame(folder, tmp_path, truth, at):  # noqa: F811
    async with Hedged(folder, tmp_path / "ring", truth, policy="sampled", chance=0.8, hedge=("stage.1",)) as ring:
        assigned = ring.plan.assignment("stage.1")
        ending = asyncio.create_task(ends(ring, at=0))
        async with asyncio.timeout(60):
            while ring.open_chunk * CHUNK < at:
                await asyncio.sleep(0.005)
        await asyncio.gather(*(ring.kill(ring.places[one]) for one in (assigned.provider, assigned.standby)))
        _, said = await asyncio.wait_for(ending, 40)
        assert said and all(isinstance(error, LinkLost) for error in said)


@pytest.mark.parametrize("strike", [(), ("stage.1",)])
@pytest.mark.parametrize("lies", ["before it may enter", "after that"])
async def test_a_hedge_that_lies_fails_by_its_own_root_and_nobody_else_does(folder, tmp_path, truth, lies, strike):  # noqa: F811
    end = truth.prompt + 16
    positions = range(truth.prompt, end) if lies == "before it may enter" else range(end + 64, 400)
    how = {"hedge": ("stage.1",), "liar": "stage.1", "positions": positions}
    async with Hedged(folder, tmp_path / "ring", truth, policy="sampled", chance=0.8, **how) as ring:
        hedge = ring.plan.hedges["stage.1"]
        left, said = await ends(ring, *strike, at=40)
        assert said == []
        assert ring.chunks(hedge, "stage.1") == all_chunks(truth)
        for place in left:
            assert computed_alike(ring, place) is (place.keys.public != hedge)
