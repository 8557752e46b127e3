"""A driver lies, and a stage, or it itself, dies at that moment: on real links nobody honest is blamed, and nobody hangs."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
import torch

from kinds.k8843_guessing import Guessing
from nodewire.errors import LinkLost, NodewireError
from nodewire.protocol.manifest import CUSTOMER
from tests.kinds.inprocess import to_arrays, to_torch
from tests.kinds.llama import load
from tests.llm.guessing_driver import AllRows, make_guessing
from tests.provider.lying_driver import LyingDriver
from tests.provider.test_guessing_job import truth  # noqa: F401
from tests.provider.test_guessing_takeover import Ring, make_trees
from tests.provider.test_provider_job import REQUEST, folder  # noqa: F401


class Lying(Ring):
    """The plan's driver lies; who enters for it does not."""

    def __init__(self, *args, seed, frames=120, trees=True, takes_back=False, **kwargs):
        super().__init__(*args, **kwargs)
        self.seed, self.frames, self.how = seed, frames, {"trees": trees, "takes_back": takes_back}

    async def enter(self, place, takeover=None):
        lies = place.keys.public == self.plan.assignment("driver").provider
        self.make_guess = self.make_lies if lies else make_trees
        await super().enter(place, takeover)

    def make_lies(self, manifest, actors, guess, *, depth, width):
        driver = actors[manifest.driver.name]
        program = driver.program.model_copy(update={"chunk": manifest.chunk})
        actors[manifest.driver.name] = LyingDriver(driver, program, self.seed, self.frames, **self.how)


@pytest.fixture(autouse=True)
def _believes(monkeypatch):
    """The liar does not compare what comes back: it knows what it did."""
    compared = Guessing._returned

    async def returned(self, frame):
        if await self._leading() is not None:
            return await compared(self, frame)
        self._desk.received(self._task, frame)
        return [frame]

    monkeypatch.setattr(Guessing, "_returned", returned)


def computed_alike(ring, place):
    """Whether all that a stage has put out of closed chunks follows from what it has of its input."""
    for task in place.run.tasks:
        if task == "driver":
            continue
        (came,) = (edge.name for edge in ring.manifest.inputs(task))
        (made,) = (edge.name for edge in ring.manifest.outputs(task))
        actor = load(ring.registration)[task]
        actor.open("again", {})
        ins = [frame for _, frame in place.spool.read(REQUEST, came)]
        outs = [frame for _, frame in place.spool.read(REQUEST, made)]
        if [frame.seq for frame in ins] != [frame.seq for frame in outs]:
            return False
        for one, out in zip(ins, outs, strict=True):
            (again,) = actor.receive("again", to_torch(one))
            rows = to_torch(out).tensors[0]
            if not torch.allclose(again.tensors[0][:, -rows.shape[1]:], rows, atol=1e-4):
                return False
    return True


async def ends(ring, *strike, at):
    """What the customer hears at the end of a job in which those who have the tasks `strike` die; all others end it, too."""
    error = None
    try:
        await ring.tokens(*strike, at=at)
    except NodewireError as ended:
        error = ended
    gone = {ring.plan.assignment(task).provider for task in strike}
    left = [place for place in ring.places.values() if place.run is not None and place.keys.public not in gone]
    async with asyncio.timeout(20):
        while any(not place.tasks[-1].done() for place in left):
            await asyncio.sleep(0.02)
    return error, left

@pytest.mark.parametrize("takes_back", [False, True])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("task", ["stage.0", "stage.1", "stage.2", "driver"])
async def test_debug(folder, tmp_path, truth, seed, task, takes_back):  # noqa: F811
    async with Lying(folder, tmp_path, truth, policy=["none", "sampled"][seed % 2], seed=seed, takes_back=takes_back) as ring:
        error, left = await ends(ring, task, at=[5, 20,33, 40][seed % 4])
        said = [error, *(one for place in left for one in place.failed)]
        print(task, seed, takes_back, repr(error), error and error.__notes__, [repr(e) for e in said if e and not isinstance(e, LinkLost)], [t.replaced for t in ring.takeovers], len(ring.committed))
        alike = [computed_alike(ring, place) for place in left]
        if not all(alike):
            print("NOT ALIKE", alike)
