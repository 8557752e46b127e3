"""A provider that follows demand, with real tasks: it moves without leaving a hole, and a restart is no move."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from nodewire.errors import Busy, NotAllowed, NotFound
from nodewire.graph import entry as actor
from nodewire.kind import Limits, installed
from nodewire.plan.place.follow import LEAVE_EPOCHS, Settings, may_leave
from nodewire.protocol.market.ad import TaskOffer
from nodewire.protocol.market.snapshot import HeldTasks, Node, Snapshot
from nodewire.provider.autoscale import store
from nodewire.provider.autoscale.candidates import Candidates
from nodewire.provider.autoscale.follower import DRAIN_EPOCHS, Follower, WindowLimits
from nodewire.provider.tasks.dynamic_loader import Windows
from nodewire.provider.tasks.loader import loaded_name
from nodewire.provider.tasks.registry import Specializations
from nodewire.store.blobs import Blobs
from nodewire.store.bounded_cache import BoundedBlobs
from tests.customer.call_models import manifest, program, ref
from tests.kinds.inprocess import Direct
from tests.protocol.committee.actors import committee, keys

TASKS = [f"t{n}" for n in range(4)]
ME, OTHERS = keys("me").public, [keys(f"other {n}").public for n in range(4)]
MB = 10**6
"""What a task takes, by the manifest."""
COMMITTEE, _ = committee(1)


def chain():
    """Four tasks in a row, each of which multiplies by its number."""
    edges = ["customer.to.t0", *(f"{a}.to.{b}" for a, b in pairwise(TASKS)), "t3.to.customer"]
    programs = {
        task: program(
            [(edges[n], "x", "float32", ("n", 2))],
            [("y", "aten.mul.Tensor", [ref("x"), n])],
            [(edges[n + 1], "y", "float32", ("n", 2))],
            {"n": 8},
        )
        for n, task in enumerate(TASKS)
    }
    ends = {edge: tuple(edge.split(".to.")) for edge in edges}
    return programs, manifest(programs, ends, name="chain")


PROGRAMS, CHAIN = chain()
DIGEST, ADDRESS = CHAIN.digest(), f"38840:{'ab' * 32}:chain"


class Engines(Direct):
    """A worker without a process, which loads real tasks."""

    def __init__(self):
        super().__init__({})
        self.stopped = False

    async def load(self, task, engine, program, weights, slots=0):
        self.actors[task] = actor.load(engine, program.read_bytes(), weights, Limits(10 * MB))
        return {"memory_bytes": MB, "load_ms": 1}


class Sky:
    """A committee whose epochs are certified when a test says so, a clock that goes along, relays with one manifest."""

    committee = COMMITTEE

    def __init__(self):
        self.number, self.lacking = 0, False
        self._snapshots: dict[int, Snapshot] = {}
        self._changed = asyncio.Condition()
        self._idle = asyncio.Event()

    def clock_s(self):
        return COMMITTEE.close_ms(self.number) / 1000 + 0.1  # the epoch after the one that is certified

    async def epoch(self, *, timeout_s, after=-1):
        def is_there():
            found = self.number > after and self.number in self._snapshots
            (self._idle.clear if found else self._idle.set)()
            return found

        async with self._changed:
            await self._changed.wait_for(is_there)
        return SimpleNamespace(body=SimpleNamespace(epoch=self.number, snapshot=str(self.number)))

    async def snapshot(self, sha256):
        return self._snapshots[int(sha256)]

    async def manifest(self, address, digest=None):
        if self.lacking:
            raise NotFound("manifest", "no relay has it")
        return CHAIN

    async def certify(self, held, *, epochs=1, until=lambda: False, waits=lambda: False):
        """So many further epochs of a market in which others hold this, or fewer, until what is waited for is so.
        `waits`: whether the follower waits for something else than an epoch."""
        for _ in range(epochs):
            async with self._changed:
                self.number += 1
                self._snapshots[self.number] = snapshot(self.number, held)
                self._idle.clear()
                self._changed.notify_all()
            async with asyncio.timeout(60):
                while not (self._idle.is_set() or waits()):
                    await asyncio.sleep(0.001)
            if until():
                return


def snapshot(epoch, held):
    """`held` has by number of a node the tasks that it holds."""
    nodes = [
        Node(
            pubkey=OTHERS[number],
            beat="0" * 64,
            ad="0" * 64,
            held=(HeldTasks(manifest=DIGEST, free=2, tasks=tuple(offer(task) for task in tasks)),),
            bond_msat=0,
            region="",
            load_ppm=0,
            coordinates=(0, 0, 0),
            epochs=1,
        )
        for number, tasks in held.items()
    ]
    nodes.sort(key=lambda node: node.pubkey)
    return Snapshot(committee="0" * 64, epoch=epoch, nodes=tuple(nodes), events=())


def offer(task):
    return TaskOffer(task=task, price_msat=100 + int(task[1]), us_per_position=1_000)


class Running:
    def __init__(self, follower, held, workers):
        self.follower, self.held, self.workers = follower, held, workers

    @property
    def offered(self):
        return [one.tasks for one in self.held.offered]

    @property
    def loaded(self):
        return sorted({name.split("/")[1] for one in self.workers if not one.stopped for name in one.actors})


@asynccontextmanager
async def following(sky, folder, *, memory=4 * MB, window=2 * MB, disk=10**9, **settings):
    held, workers = Specializations(), []

    def make(stack):
        def one(entry):
            worker = Engines()
            workers.append(worker)
            stack.callback(setattr, worker, "stopped", True)
            return worker

        return one

    async def announce():
        """As the announcer: what is offered is published at once."""
        while True:
            held.changed.clear()
            await held.published(held.offered)
            await held.changed.wait()

    async with AsyncExitStack() as stack:
        blobs = await stack.enter_async_context(Blobs((), folder / "blobs"))
        for data in PROGRAMS.values():
            blobs.keep(data)
        kept = BoundedBlobs(blobs, folder / "used.db", disk)
        stack.callback(kept.close)
        kinds = installed()
        measured = {DIGEST: dict.fromkeys(TASKS, 1_000)}
        windows = Windows(kinds, make, blobs, kept, folder / "blobs", disk_bytes=disk, slots=2, measured=measured)
        stack.push_async_callback(windows.close)
        pace = Settings(**{"rest": 1, "patience": 1, **settings})
        budget = WindowLimits(window, memory, 3 * MB, least_msat=7, price_ppm=500_000, pace=pace)
        candidates = Candidates(sky, None, [ADDRESS], kinds.keys(), ())
        follower = Follower(ME, sky, candidates, windows, held, folder, budget, clock_s=sky.clock_s)
        tasks = [asyncio.create_task(one) for one in (follower.run(), announce())]
        try:
            yield Running(follower, held, workers)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended


ALL_BUT_LAST = {0: TASKS[:2], 1: TASKS[:3]}
FULL = {0: TASKS[:2], 1: TASKS[2:], 2: TASKS[2:]}
HOLE = {0: TASKS[:2]}
TURNS = 40 * LEAVE_EPOCHS
"""Epochs within which its turn to leave has certainly come."""


async def test_it_begins_with_what_nobody_holds_at_half_of_what_others_ask(tmp_path):
    sky = Sky()
    async with following(sky, tmp_path) as mine:
        await sky.certify(ALL_BUT_LAST)
        assert mine.offered == [("t2", "t3")]
        (served,) = mine.held.offered
        assert served.prices_msat == {"t2": 51, "t3": 50}
        assert served.us_per_position == {"t2": 1_000, "t3": 1_000}
        assert set(served.worker.actors) == {loaded_name(DIGEST, task) for task in ("t2", "t3")}
        assert not served.worker.open_sessions  # of the call that warmed it


async def test_it_goes_to_what_lost_its_holder_and_lets_go_of_the_old_when_nobody_needs_it(tmp_path):
    sky = Sky()
    async with following(sky, tmp_path) as mine:
        await sky.certify({2: TASKS[2:]})
        assert mine.offered == [("t0", "t1")]
        (old,) = mine.held.offered
        await sky.certify(FULL, epochs=8)
        assert mine.offered == [("t0", "t1")]  # everything is held
        pages = old.allocate()  # a job
        await sky.certify(HOLE, epochs=TURNS, until=lambda: mine.offered == [("t2", "t3")])
        assert mine.offered == [("t2", "t3")]
        assert mine.held.find(DIGEST, {"t0"}) is old  # who planned by the old ad is served
        assert mine.loaded == TASKS
        await sky.certify(HOLE, epochs=DRAIN_EPOCHS + 1, waits=lambda: old.closed)
        with pytest.raises(NotAllowed):
            mine.held.find(DIGEST, {"t0"})
        with pytest.raises(Busy):
            old.allocate()
        assert mine.loaded == TASKS  # the job goes on
        old.give(pages)
        await sky.certify(HOLE)
        assert mine.loaded == ["t2", "t3"]
        assert "0 positions a second" in store.read(tmp_path).why


async def test_it_does_not_leave_what_nobody_else_holds(tmp_path):
    sky = Sky()
    async with following(sky, tmp_path) as mine:
        await sky.certify({2: TASKS[2:]})
        await sky.certify({0: TASKS[:1]}, epochs=3 * LEAVE_EPOCHS)  # nobody has t1, t2, t3
        assert mine.offered == [("t0", "t1")]


async def test_it_goes_back_if_the_others_left_at_the_same_time(tmp_path):
    sky = Sky()
    async with following(sky, tmp_path, rest=100) as mine:
        await sky.certify({2: TASKS[2:]})
        await sky.certify(FULL, epochs=100)
        await sky.certify(HOLE, epochs=TURNS, until=lambda: mine.offered == [("t2", "t3")])
        assert mine.offered == [("t2", "t3")]
        await sky.certify({0: TASKS[2:], 1: TASKS[1:]}, epochs=2)  # they went there, too
        assert mine.offered == [("t0", "t1")]
        await sky.certify({0: TASKS[2:], 1: TASKS[1:]}, epochs=DRAIN_EPOCHS + 1)
        assert mine.loaded == ["t0", "t1"]


async def test_without_room_for_both_the_old_is_left_first_and_never_are_both_loaded(tmp_path):
    sky = Sky()
    async with following(sky, tmp_path, memory=2 * MB) as mine:
        await sky.certify({2: TASKS[2:]})
        seen = []

        def moved():
            seen.append(mine.loaded)
            return mine.offered == [("t2", "t3")]

        await sky.certify(FULL, epochs=2)
        await sky.certify(HOLE, epochs=TURNS, until=moved)
        assert mine.offered == [("t2", "t3")]
        assert {tuple(one) for one in seen} == {("t0", "t1"), ("t2", "t3")}


async def test_a_restart_holds_the_same_before_any_epoch_and_rests_as_long(tmp_path):
    sky = Sky()
    async with following(sky, tmp_path) as mine:
        await sky.certify({2: TASKS[2:]})
    before = store.read(tmp_path)
    async with following(sky, tmp_path, rest=1_000) as mine:
        async with asyncio.timeout(30):
            while not mine.offered:
                await asyncio.sleep(0)
        assert mine.offered == [("t0", "t1")]
        assert dict(mine.held.offered[0].prices_msat) == before.prices_msat
        await sky.certify(HOLE, epochs=3 * LEAVE_EPOCHS)
        assert mine.offered == [("t0", "t1")]
        assert replace(store.read(tmp_path), wanted=0) == replace(before, wanted=0)


@pytest.mark.parametrize("text", ["", "{", '{"address": 1}', '{"prices_msat": {}}'])
async def test_a_damaged_file_is_no_reason_not_to_start(tmp_path, text):
    sky = Sky()
    (tmp_path / store.FILE).write_text(text)
    async with following(sky, tmp_path) as mine:
        await sky.certify(ALL_BUT_LAST)
        assert mine.offered == [("t2", "t3")]


async def test_what_is_too_large_for_the_disk_is_not_fetched_and_the_rest_is_tried(tmp_path):
    sky = Sky()
    async with following(sky, tmp_path, disk=len(PROGRAMS["t0"]) + 50) as mine:
        await sky.certify(ALL_BUT_LAST, epochs=4)
        assert len(mine.offered) == 1 and len(mine.offered[0]) == 1
        assert len(mine.workers) == 1


async def test_a_task_that_is_refused_keeps_none_of_the_others_from_being_held(tmp_path, monkeypatch):
    sky = Sky()
    real = Engines.load

    async def load(self, task, *how):
        if task.endswith("/t3"):
            raise NotAllowed("node", "is not allowed")
        return await real(self, task, *how)

    monkeypatch.setattr(Engines, "load", load)
    async with following(sky, tmp_path) as mine:
        await sky.certify(ALL_BUT_LAST, epochs=3)
        assert mine.offered == [("t1", "t2")]
        assert "t3" not in mine.loaded
        assert all(one.stopped for one in mine.workers[:-1])


async def test_relays_that_lack_the_manifest_are_asked_again(tmp_path):
    sky = Sky()
    sky.lacking = True
    async with following(sky, tmp_path) as mine:
        await sky.certify(ALL_BUT_LAST, epochs=2)
        assert mine.offered == []
        sky.lacking = False
        await sky.certify(ALL_BUT_LAST)
        assert mine.offered == [("t2", "t3")]


def test_of_the_holders_of_a_task_at_most_half_may_leave_at_once_and_each_in_its_turn():
    left = dict.fromkeys(OTHERS, 0)
    for epoch in range(100 * LEAVE_EPOCHS):
        at = snapshot(epoch, dict.fromkeys(range(4), TASKS))
        leaving = [own for own in OTHERS if may_leave(at, own, DIGEST, TASKS)]
        assert len(leaving) == (2 if epoch % LEAVE_EPOCHS < LEAVE_EPOCHS / 2 else 0)
        for own in leaving:
            left[own] += 1
    assert min(left.values()) > 20
    alone = snapshot(0, {0: TASKS[:1], 1: TASKS})
    assert not any(may_leave(snapshot(n, {0: TASKS[:1], 1: TASKS}), OTHERS[1], DIGEST, TASKS) for n in range(99))
    assert not may_leave(alone, ME, DIGEST, ["t9"])
