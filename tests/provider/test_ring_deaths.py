"""A provider dies in mid-job: on real links its standby goes on, and the tokens are the same."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from nodewire.errors import LinkLost
from tests.provider.ring import CHUNK, Ring, make_trees
from tests.provider.test_guessing_job import truth  # noqa: F401
from tests.provider.test_provider_job import folder  # noqa: F401


@pytest.mark.parametrize("at", [1, 33, 70])
@pytest.mark.parametrize("task", ["stage.0", "stage.1", "stage.2", "driver"])
async def test_who_enters_goes_on_with_the_same_tokens_and_all_chunks_are_committed_to(
    folder,  # noqa: F811
    tmp_path,
    truth,  # noqa: F811
    task,
    at,
):
    async with Ring(folder, tmp_path, truth, policy="sampled" if at == 33 else "none") as ring:
        assert await ring.tokens(task, at=at) == truth.ids
        assert [[one[0] for one in said.replaced] for said in ring.takeovers] == [[task]]
        victim = ring.plan.assignment(task).provider
        left = [place for place in ring.places.values() if place.run is not None and place.keys.public != victim]
        async with asyncio.timeout(60):
            while any(not task.done() for place in left for task in place.tasks[-1:]):
                await asyncio.sleep(0.02)
        assert [place.failed for place in left] == [[]] * len(left)
    first = ring.takeovers[0].replaced[0][3]
    chunks = set(range(1 + -(-(len(truth.ids) - 1) // CHUNK)))
    for assignment in ring.plan.tasks:
        made = {
            root.chunk for who, root in ring.committed if (who, root.task) == (assignment.provider, assignment.task)
        }
        if assignment.task != task:
            assert made == chunks
        else:
            entered = {root.chunk for who, root in ring.committed if who == assignment.standby}
            assert entered == {chunk for chunk in chunks if chunk >= first}


@pytest.mark.parametrize("policy", ["none", "sampled"])
@pytest.mark.parametrize("at", [33, 70])
@pytest.mark.parametrize("stage", ["stage.0", "stage.1", "stage.2"])
async def test_a_driver_and_a_stage_that_die_together_are_replaced_together(
    folder,  # noqa: F811
    tmp_path,
    truth,  # noqa: F811
    stage,
    at,
    policy,
):
    async with Ring(folder, tmp_path, truth, policy=policy) as ring:
        assert await ring.tokens("driver", stage, at=at) == truth.ids
        assert {one[0] for one in ring.takeovers[-1].replaced} == {"driver", stage}
        gone = {ring.plan.assignment(task).provider for task in ("driver", stage)}
        left = [place for place in ring.places.values() if place.run is not None and place.keys.public not in gone]
        async with asyncio.timeout(60):
            while any(not task.done() for place in left for task in place.tasks[-1:]):
                await asyncio.sleep(0.02)
        assert [place.failed for place in left] == [[]] * len(left)
    chunks = set(range(1 + -(-(len(truth.ids) - 1) // CHUNK)))
    since = {task: first for task, _, _, first in ring.takeovers[-1].replaced}
    for assignment in ring.plan.tasks:
        who, task = (assignment.standby if assignment.task in since else assignment.provider), assignment.task
        made = {root.chunk for by, root in ring.committed if (by, root.task) == (who, task)}
        assert made == {chunk for chunk in chunks if chunk >= since.get(task, 0)}


@pytest.mark.parametrize("second", ["stage.0", "stage.1", "stage.2"])
@pytest.mark.parametrize("after_s", [0.02, 0.1, 0.2])
async def test_a_second_death_while_a_standby_enters_changes_no_token(
    folder,  # noqa: F811
    tmp_path,
    truth,  # noqa: F811
    after_s,
    second,
):
    """Where nobody is left the job ends, and nobody is to blame."""
    ring = Ring(folder, tmp_path / "ring", truth, policy="none")

    async def strike():
        while not ring.takeovers:
            await asyncio.sleep(0.005)
        await asyncio.sleep(after_s)
        await ring.kill(ring.places[ring.plan.assignment(second).provider])

    async with ring:
        if second == "stage.1":  # who has entered for it cannot be replaced; its own death is that of all
            first, expected = "stage.0", {"stage.0", "stage.1"}
        else:
            first, expected = "stage.1", {"stage.1", second}
        ring.beside.append(asyncio.create_task(strike()))
        with suppress(LinkLost):
            assert await ring.tokens(first, at=33) == truth.ids
        assert {one[0] for said in ring.takeovers for one in said.replaced} <= expected
        failed = [error for place in ring.places.values() for error in place.failed]
        assert all(isinstance(error, LinkLost) for error in failed)


HELD = {
    "the driver with the last stage": ({"driver": (0, 4), "stage.2": (0, 4)}, {"driver", "stage.2"}),
    "the driver with the first stage": ({"driver": (0, 4), "stage.0": (0, 4)}, {"driver", "stage.0"}),
    "the driver with both": (dict.fromkeys(("driver", "stage.0", "stage.2"), (0, 4)), {"driver", "stage.0", "stage.2"}),
    "the driver with the first stage, for which the second enters": (
        {"driver": (0, 4), "stage.0": (0, 2)},
        {"driver", "stage.0"},
    ),
    "the driver with the last stage, for which the second enters": (
        {"driver": (0, 4), "stage.2": (0, 2)},
        {"driver", "stage.2"},
    ),
    "the driver with the first stage, for which the last enters": (
        {"driver": (0, 4), "stage.0": (0, 3)},
        {"driver", "stage.0"},
    ),
    "the driver with the first stage, for both of which the second enters": (
        {"driver": (0, 2), "stage.0": (0, 2)},
        {"driver", "stage.0"},
    ),
    "the driver, for whom the second stage enters": ({"driver": (0, 2)}, {"driver"}),
    "the driver, for whom the last stage enters": ({"driver": (0, 3)}, {"driver"}),
    "the driver, for whom the first stage enters": ({"driver": (0, 1)}, {"driver"}),
    "the last stage, for whom the driver enters": ({"stage.2": (3, 0)}, {"stage.2"}),
    "the first stage, for whom the driver enters": ({"stage.0": (1, 0)}, {"stage.0"}),
}


@pytest.mark.parametrize("at", [1, 33, 70])
@pytest.mark.parametrize("held", HELD)
async def test_both_ends_of_an_edge_may_come_to_one_node(folder, tmp_path, truth, held, at):  # noqa: F811
    who, tasks = HELD[held]
    async with Ring(folder, tmp_path / "ring", truth, policy="none", who=who) as ring:
        assert await ring.tokens(min(tasks), at=at) == truth.ids
        assert [error for place in ring.places.values() for error in place.failed] == []
        assert [{one[0] for one in said.replaced} for said in ring.takeovers] == [tasks]


@pytest.mark.parametrize("trees", [False, True])
async def test_guesses_of_which_nobody_dies_change_no_token(folder, tmp_path, truth, trees):  # noqa: F811
    ring = Ring(folder, tmp_path, truth, policy="sampled", lookahead=8, width=2)
    ring.make_guess = make_trees if trees else ring.make_guess
    async with ring:
        assert await ring.tokens() == truth.ids
        assert ring.takeovers == []


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("at", [1, 33, 70])
@pytest.mark.parametrize("task", ["stage.0", "stage.1", "stage.2", "driver"])
async def test_where_guesses_travel_a_death_ends_the_job_and_nobody_who_lives_is_to_blame(
    folder,  # noqa: F811
    tmp_path,
    truth,  # noqa: F811
    task,
    at,
    trees,
):
    """It is begun anew: nobody stands by, and no node has to know what another had guessed."""
    ring = Ring(folder, tmp_path, truth, policy="sampled", lookahead=8, width=2)
    ring.make_guess = make_trees if trees else ring.make_guess
    async with ring:
        with pytest.raises(LinkLost):
            await ring.tokens(task, at=at)
        assert ring.takeovers == []
        gone = ring.plan.assignment(task).provider
        left = [place for place in ring.places.values() if place.run is not None and place.keys.public != gone]
        async with asyncio.timeout(60):
            while any(not place.tasks[-1].done() for place in left):
                await asyncio.sleep(0.02)
        assert all(isinstance(error, LinkLost) for place in left for error in place.failed)
        assert all(place.failed for place in left)
    for assignment in ring.plan.tasks:
        if assignment.provider != gone:  # what was closed is committed to, but for a chunk that who died had not signed
            made = {root.chunk for by, root in ring.committed if by == assignment.provider}
            assert set(range(at // CHUNK)) <= made
