"""A provider dies in mid-job: on real links the job ends for all others, and what was closed is committed to."""

from __future__ import annotations

import asyncio

import pytest

from nodewire.errors import LinkLost
from tests.provider.inference.test_provider_job import folder  # noqa: F401
from tests.provider.inference.test_speculative_job import truth  # noqa: F401
from tests.provider.ring import CHUNK, Ring, make_trees


async def test_a_job_of_which_nobody_dies_gives_the_models_tokens_and_commits_to_all_chunks(folder, tmp_path, truth):  # noqa: F811
    async with Ring(folder, tmp_path, truth, policy="sampled") as ring:
        assert await ring.tokens() == truth.ids
        async with asyncio.timeout(60):
            while any(not place.tasks[-1].done() for place in ring.places.values()):
                await asyncio.sleep(0.02)
        assert [place.failed for place in ring.places.values()] == [[]] * len(ring.places)
    chunks = set(range(1 + -(-(len(truth.ids) - 1) // CHUNK)))
    for assignment in ring.plan.tasks:
        assert {root.chunk for by, root in ring.committed if by == assignment.provider} == chunks


HELD = {
    "the driver with the last stage": {"driver": 0, "stage.2": 0},
    "the driver with the first stage": {"driver": 0, "stage.0": 0},
    "the driver with both": {"driver": 0, "stage.0": 0, "stage.2": 0},
    "two stages": {"stage.0": 1, "stage.1": 1},
}


@pytest.mark.parametrize("held", HELD)
async def test_both_ends_of_an_edge_may_be_at_one_node(folder, tmp_path, truth, held):  # noqa: F811
    async with Ring(folder, tmp_path / "ring", truth, policy="sampled", at=HELD[held]) as ring:
        assert await ring.tokens() == truth.ids
        assert [error for place in ring.places.values() for error in place.failed] == []


@pytest.mark.parametrize("trees", [False, True])
async def test_guesses_of_which_nobody_dies_change_no_token(folder, tmp_path, truth, trees):  # noqa: F811
    ring = Ring(folder, tmp_path, truth, policy="sampled", lookahead=8, width=2)
    ring.make_guess = make_trees if trees else ring.make_guess
    async with ring:
        assert await ring.tokens() == truth.ids


@pytest.mark.parametrize("how", ["plain", "guesses", "trees"])
@pytest.mark.parametrize("at", [1, 33, 70])
@pytest.mark.parametrize(
    "tasks",
    [("stage.0",), ("stage.1",), ("stage.2",), ("driver",), ("driver", "stage.1"), ("stage.0", "stage.1")],
    ids="+".join,
)
async def test_a_death_ends_the_job_for_all_others_and_no_node_that_lives_is_to_blame(
    folder,  # noqa: F811
    tmp_path,
    truth,  # noqa: F811
    tasks,
    at,
    how,
):
    """It is begun anew by its customer. What the driver had closed is committed to."""
    ring = Ring(folder, tmp_path, truth, policy="sampled", lookahead=1 if how == "plain" else 8, width=2)
    ring.make_guess = make_trees if how == "trees" else ring.make_guess
    gone = {ring.plan.assignment(task).provider for task in tasks}
    async with ring:
        with pytest.raises(LinkLost) as ended:
            await ring.tokens(*tasks, at=at)
        assert ended.value.field in gone
        left = [place for place in ring.places.values() if place.keys.public not in gone]
        async with asyncio.timeout(60):
            while any(not place.tasks[-1].done() for place in left):
                await asyncio.sleep(0.02)
        assert all(place.failed for place in left)
        assert all(isinstance(error, LinkLost) and error.field in gone for place in left for error in place.failed)
    for assignment in ring.plan.tasks:
        if assignment.provider not in gone:  # but for a chunk that a dead producer had not signed
            made = [root.chunk for by, root in ring.committed if by == assignment.provider]
            assert set(range(at // CHUNK)) <= set(made)
            assert len(made) == len(set(made))
