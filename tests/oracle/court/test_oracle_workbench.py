"""An oracle's worker is there before a dispute needs it, and what it loads stays loaded whoever waited for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodewire.errors import OverMemory, WorkerFailed
from nodewire.kind import Limits
from nodewire.oracle.court import workbench as module
from nodewire.oracle.court.workbench import Workbench
from tests.protocol.documents import manifest

MANIFEST = manifest()
KIND = SimpleNamespace(worker_entry="entry")
FIRST, SECOND = (task.name for task in MANIFEST.tasks[:2])


class Bench:
    """What the workers are asked for: `room` tasks fit into one, loading goes on when `free` says so."""

    def __init__(self, monkeypatch, room=8):
        self.done, self.room, self.broken = [], room, False
        self.free = asyncio.Event()
        self.free.set()
        monkeypatch.setattr(module, "maker", self.maker)
        self.workbench = Workbench(self, Limits(1, 1, "cpu"), Path())

    def maker(self, stack, limits, readable):
        def make(entry):
            worker = Worker(self)
            stack.push_async_callback(worker.stop)
            return worker

        return make

    async def fetch_blob(self, sha256, max_bytes):
        return Path(sha256)


class Worker:
    def __init__(self, bench):
        self.bench, self.tasks = bench, []

    async def ready(self):
        if self.bench.broken:
            raise WorkerFailed("worker", "died")
        self.bench.done.append("ready")

    async def load(self, task, engine, program, weights, slots=0):
        assert task not in self.tasks, "it is loaded already"
        if len(self.tasks) == self.bench.room:
            raise OverMemory("task", "full")
        self.tasks.append(task)
        await self.bench.free.wait()
        self.bench.done.append(task[17:])

    async def unload(self, task):
        self.tasks.remove(task)
        self.bench.done.append(f"without {task[17:]}")

    async def stop(self):
        self.bench.done.append("stop")


async def test_the_worker_is_started_before_anything_is_to_be_loaded(monkeypatch):
    bench = Bench(monkeypatch)
    await bench.workbench.warm([KIND, KIND], 0.0)
    assert bench.done == ["ready"]
    worker, name = await bench.workbench.loaded(KIND, MANIFEST, FIRST)
    assert worker.tasks == [name]
    assert bench.done == ["ready", FIRST]
    await bench.workbench.close()
    assert bench.done[-1] == "stop"


async def test_a_worker_that_does_not_start_yet_is_no_error(monkeypatch):
    bench = Bench(monkeypatch)
    bench.broken = True
    await bench.workbench.warm([KIND], 0.0)
    await bench.workbench.loaded(KIND, MANIFEST, FIRST)


async def test_who_gives_up_waiting_does_not_end_the_loading(monkeypatch):
    bench = Bench(monkeypatch)
    bench.free.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await bench.workbench.loaded(KIND, MANIFEST, FIRST)
    again = asyncio.create_task(bench.workbench.loaded(KIND, MANIFEST, FIRST))
    await asyncio.sleep(0)
    bench.free.set()
    worker, name = await again
    assert worker.tasks == [name]
    assert (await bench.workbench.loaded(KIND, MANIFEST, FIRST))[0] is worker


async def test_an_oracle_with_room_for_one_task_computes_every_task_of_a_model_in_turn(monkeypatch):
    bench = Bench(monkeypatch, room=1)
    for task in MANIFEST.tasks:
        worker, name = await bench.workbench.loaded(KIND, MANIFEST, task.name)
        assert worker.tasks == [name]
    assert bench.done == [FIRST, f"without {FIRST}", SECOND, f"without {SECOND}", MANIFEST.tasks[2].name]


async def test_what_was_used_longest_ago_makes_room(monkeypatch):
    bench = Bench(monkeypatch, room=2)
    for task in (FIRST, SECOND, FIRST, MANIFEST.tasks[2].name):
        worker, _ = await bench.workbench.loaded(KIND, MANIFEST, task)
    assert [name[17:] for name in worker.tasks] == [FIRST, MANIFEST.tasks[2].name]


async def test_a_task_that_is_too_large_for_an_empty_worker_is_refused(monkeypatch):
    bench = Bench(monkeypatch, room=0)
    with pytest.raises(OverMemory):
        await bench.workbench.loaded(KIND, MANIFEST, FIRST)
    assert bench.done == []


async def test_the_blobs_of_what_is_loaded_are_named_for_who_sweeps(monkeypatch):
    bench = Bench(monkeypatch, room=1)
    first, second = (
        {ref.sha256 for ref in (task.program, *task.weights)} for task in (MANIFEST.task(FIRST), MANIFEST.task(SECOND))
    )
    assert bench.workbench.blobs == frozenset()
    await bench.workbench.loaded(KIND, MANIFEST, FIRST)
    assert bench.workbench.blobs == first
    await bench.workbench.loaded(KIND, MANIFEST, SECOND)  # which has the worker to itself now
    assert bench.workbench.blobs == second
    await bench.workbench.close()
    assert bench.workbench.blobs == frozenset()
