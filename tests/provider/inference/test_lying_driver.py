"""A driver lies, and a stage or it itself dies meanwhile: on real links nobody honest is blamed, and nobody hangs."""

from __future__ import annotations

import asyncio

import pytest
import torch

from kinds.k8843_decoder import DecoderTask
from nodewire.errors import BadFrame, LinkLost, NodewireError
from nodewire.protocol.tensors.frame import Frame
from nodewire.provider.inference.statements import PATIENCE_S
from tests.kinds.inprocess import to_torch
from tests.kinds.llama import load
from tests.provider.inference.test_provider_job import REQUEST, change, folder  # noqa: F401
from tests.provider.inference.test_speculative_job import truth  # noqa: F401
from tests.provider.lying_driver import LyingDriver
from tests.provider.ring import Ring, make_trees


class Lying(Ring):
    """The plan's driver lies."""

    def __init__(self, *args, seed, frames=120, trees=True, takes_back=False, **kwargs):
        super().__init__(*args, lookahead=8, **kwargs)
        self.seed, self.frames, self.how = seed, frames, {"trees": trees, "takes_back": takes_back}

    async def enter(self, place):
        lies = place.keys.public == self.plan.assignment("driver").provider
        self.make_guess = self.make_lies if lies else make_trees
        await super().enter(place)
        change(place.run, patience_s=PATIENCE_S + 5)
        place.run.credit._patience_s = PATIENCE_S + 5  # by then it is known that somebody lies

    def make_lies(self, manifest, actors, guess, *, depth, width):
        driver = actors[manifest.driver.name]
        program = driver.program.model_copy(update={"chunk": manifest.chunk})
        actors[manifest.driver.name] = LyingDriver(driver, program, self.seed, self.frames, **self.how)


@pytest.fixture(autouse=True)
def _believes(monkeypatch):
    """The liar does not compare what comes back: it knows what it did."""

    async def returned(self, frame):
        self._desk.received(self._task, frame)
        return [frame]

    monkeypatch.setattr(DecoderTask, "_returned", returned)


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
        ins = ins[: len(outs)]  # a job that ended may have ended before the last ones were computed
        if [frame.seq for frame in ins] != [frame.seq for frame in outs]:
            return False
        for one, out in zip(ins, outs, strict=True):
            (again,) = actor.receive("again", to_torch(one))
            rows = to_torch(out).tensors[0]
            if not torch.allclose(again.tensors[0][:, -rows.shape[1] :], rows, atol=1e-4):
                return False
    return True


async def ends(ring, *strike, at):
    """Who is left in a job in which those who have the tasks `strike` die, and what it ended with; it ends for all."""
    said = []
    try:
        await ring.tokens(*strike, at=at)
    except NodewireError as error:
        said.append(error)
    gone = {ring.plan.assignment(task).provider for task in strike}
    left = [place for place in ring.places.values() if place.run is not None and place.keys.public not in gone]
    async with asyncio.timeout(60):
        while any(not place.tasks[-1].done() for place in left):
            await asyncio.sleep(0.02)
    return left, [*said, *(error for place in left for error in place.failed)]


def blames_nobody_honest(error):
    """It names an edge of the driver's, or nobody."""
    return isinstance(error, LinkLost) or (isinstance(error, BadFrame) and error.field == "hidden.0")


@pytest.mark.parametrize("takes_back", [False, True], ids=["closes what came back", "takes back what it closed"])
@pytest.mark.parametrize(("seed", "at"), [(1, 20), (2, 33), (5, 20), (8, 60)])
@pytest.mark.parametrize("task", ["stage.0", "stage.1", "stage.2", "driver"])
async def test_who_dies_while_the_driver_lies_has_nobody_honest_blamed_and_nobody_waits(
    folder,  # noqa: F811
    tmp_path,
    truth,  # noqa: F811
    task,
    seed,
    at,
    takes_back,
):
    policy = "sampled" if seed % 2 else "none"
    async with Lying(folder, tmp_path, truth, policy=policy, seed=seed, takes_back=takes_back) as ring:
        left, said = await ends(ring, task, at=at)
        assert [error for error in said if not blames_nobody_honest(error)] == []
        assert all(computed_alike(ring, place) for place in left)


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("takes_back", [False, True])
async def test_a_driver_that_lies_has_no_honest_stage_blamed(folder, tmp_path, truth, takes_back, trees):  # noqa: F811
    """Whoever is slower to hear of a close passes on what the next one has to refuse."""
    for seed in range(4):
        how = {"policy": "sampled", "seed": seed, "takes_back": takes_back, "trees": trees}
        async with Lying(folder, tmp_path / str(seed), truth, **how) as ring:
            left, said = await ends(ring, at=0)
            assert [error for error in said if not blames_nobody_honest(error)] == []
            assert takes_back or said == []
            assert all(computed_alike(ring, place) for place in left)


class Noisy:
    """A stage that adds noise to what it puts out from a position on, or up to one."""

    def __init__(self, stage, positions):
        self._stage, self._positions = stage, positions

    def __getattr__(self, name):
        return getattr(self._stage, name)

    def receive(self, session, frame):
        (out,) = self._stage.receive(session, frame)
        if out.seq and out.meta["pos"] in self._positions and out.tensors[0].numel():
            return [Frame(out.edge, out.seq, (out.tensors[0] * 1.05,), out.meta)]
        return [out]


class WithALiar(Ring):
    """One that has a stage computes something else at some of the positions."""

    liar = None
    positions = range(0)

    async def enter(self, place):
        def make(manifest, actors, guess, *, depth, width):
            make_trees(manifest, actors, guess, depth=depth, width=width)
            if place.keys.public == self.liar:
                actors["stage.1"] = Noisy(actors["stage.1"], self.positions)

        self.make_guess = make
        await super().enter(place)


@pytest.mark.parametrize("lookahead", [1, 8])
@pytest.mark.parametrize("task", ["driver", "stage.2", None])
async def test_of_a_sampled_job_with_a_death_what_the_liar_committed_to_fails_and_all_else_passes(
    folder,  # noqa: F811
    tmp_path,
    truth,  # noqa: F811
    task,
    lookahead,
):
    """Computed once more, as verifiers do: from what each keeps as the input that was signed to it."""
    ring = WithALiar(folder, tmp_path / "ring", truth, policy="sampled", lookahead=lookahead)
    ring.liar = ring.plan.assignment("stage.1").provider
    ring.positions = range(truth.prompt, truth.prompt + 16)
    async with ring:
        left, said = await ends(ring, *([task] if task else []), at=40)
        assert [error for error in said if not isinstance(error, LinkLost)] == []
        assert bool(said) is bool(task)
        for place in left:
            assert computed_alike(ring, place) is (place.keys.public != ring.liar), place.run.tasks
