"""A worker whose process dies keeps its specialization: the next session finds everything loaded again."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from nodewire.errors import OverMemory, WorkerFailed
from nodewire.kind import Limits
from nodewire.protocol.tensors.frame import Frame
from nodewire.worker.metrics import Machines, Workers
from nodewire.worker.persistent_worker import LastingWorker, maker
from tests.sessions import Named, SessionOf


class Process:
    """A worker process that lives until it is killed, and remembers what was asked of it."""

    def __init__(self, refuses: bool = False) -> None:
        self.alive, self.refuses = True, refuses
        self.loaded: list[str] = []
        self.sessions: list[tuple[str, str]] = []

    async def load(self, task, engine, program, weights, slots=0):
        if self.refuses:
            raise OverMemory("task", "does not fit")
        self.loaded.append(task)
        return {"memory_bytes": 1, "load_ms": 1}

    async def unload(self, task):
        self.loaded.remove(task)

    async def open(self, task, session, params, codings=None, turn=None):
        self._live()
        self.sessions.append((task, session))
        return SessionOf(self, task, session)

    async def receive(self, task, session, frame):
        self._live()
        return [frame]

    async def close(self, task, session):
        self.sessions.remove((task, session))

    async def stop(self):
        self.alive = False

    def _live(self):
        if not self.alive:
            raise WorkerFailed("worker", "killed")


class Factory:
    def __init__(self, *processes: Process) -> None:
        self.waiting, self.started = list(processes), []

    async def __call__(self):
        self.started.append(self.waiting.pop(0))
        return self.started[-1]


def shown(worker: LastingWorker) -> dict[str, float]:
    """By sample, without what counters end in; the largest bucket of histograms."""

    def named():
        return [("serve-0", worker)]

    samples = [
        sample
        for source in (Workers(named), Machines(named, 50_000_000))
        for metric in source.collect()
        for sample in metric.samples
    ]
    assert {sample.labels["worker"] for sample in samples} == {"serve-0"}
    return {sample.name.removesuffix("_total"): sample.value for sample in samples}


async def loaded(factory: Factory) -> Named:
    worker = Named(LastingWorker(factory))
    for task in ("a", "b"):
        await worker.load(task, "graph", Path("program"), [])
    return worker


async def test_one_process_serves_as_long_as_it_lives():
    factory = Factory(Process())
    worker = await loaded(factory)
    await worker.open("a", "s", {})
    assert await worker.receive("a", "s", "frame") == ["frame"]
    await worker.close("a", "s")
    assert len(factory.started) == 1


async def test_a_death_ends_its_sessions_and_the_next_one_finds_everything_loaded():
    factory = Factory(Process(), Process())
    worker = await loaded(factory)
    await worker.open("a", "s", {})
    factory.started[0].alive = False
    with pytest.raises(WorkerFailed):
        await worker.receive("a", "s", "frame")
    await asyncio.gather(worker.open("a", "t", {}), worker.open("b", "t", {}))
    assert factory.started[1].loaded == ["a", "b"]
    assert len(factory.started) == 2


async def test_a_session_of_a_process_that_died_ends_by_that_although_another_lives_by_now():
    factory = Factory(Process(), Process())
    worker = await loaded(factory)
    await worker.open("a", "idle", {})
    factory.started[0].alive = False
    await worker.open("a", "new", {})  # another job has the worker started anew
    with pytest.raises(WorkerFailed):  # so that the job ends, as those that were at a call
        await worker.receive("a", "idle", "frame")
    await worker.close("a", "idle")
    assert factory.started[1].sessions == [("a", "new")]
    assert await worker.receive("a", "new", "frame") == ["frame"]


async def test_a_process_that_cannot_load_everything_again_is_ended_and_the_next_session_tries_another():
    factory = Factory(Process(), Process(refuses=True), Process())
    worker = await loaded(factory)
    factory.started[0].alive = False
    with pytest.raises(OverMemory):
        await worker.open("a", "s", {})
    assert not factory.started[1].alive
    await worker.open("a", "s", {})
    assert factory.started[2].sessions == [("a", "s")]


async def test_a_real_process_that_dies_is_replaced(tmp_path):
    program = tmp_path / "program"
    program.write_bytes(b"")
    async with AsyncExitStack() as stack:
        worker = Named(maker(stack, Limits(50_000_000), tmp_path)("tests.worker.worker_entry_for_tests"))
        await worker.load("a", "any", program, [])
        await worker.open("a", "s", {})
        with pytest.raises(WorkerFailed):
            await worker.receive("a", "s", Frame("edge", 0, (), {"do": "die"}))
        await worker.open("a", "t", {})
        assert await worker.receive("a", "t", Frame("edge", 0, (), {}))
        found = shown(worker)
        assert found["nodewire_worker_starts"] == 2
        assert found["nodewire_worker_up"] == 1
        assert found["nodewire_worker_calls"] == 3  # the second process was told to load, open and receive
        assert found["nodewire_worker_call_seconds_count"] == 1
        assert found["nodewire_worker_wait_seconds_count"] == 3
        assert found["nodewire_worker_waiting_calls"] == 0
        assert found["nodewire_worker_cpu_seconds"] > 0
        assert found["nodewire_worker_resident_memory_bytes"] > 10_000_000
        assert found["nodewire_worker_memory_cap_bytes"] == 50_000_000
        await worker.stop()
        await worker.process.ended()
        gone = shown(worker)
        assert gone["nodewire_worker_up"] == 0
        assert "nodewire_worker_memory_bytes" not in gone


async def test_what_was_unloaded_is_not_loaded_into_a_later_process():
    factory = Factory(Process(), Process())
    worker = await loaded(factory)
    await worker.unload("a")
    assert factory.started[0].loaded == ["b"]
    factory.started[0].alive = False
    await worker.unload("never loaded")
    await worker.open("b", "s", {})
    assert factory.started[1].loaded == ["b"]


async def test_what_is_unloaded_while_a_process_starts_keeps_none_from_starting():
    factory = Factory(Process(), Process())
    worker, slow = await loaded(factory), factory.waiting[0]
    load = slow.load

    async def unloading(task, *files):
        await worker.unload("b")
        return await load(task, *files)

    factory.started[0].alive, slow.load = False, unloading
    await worker.open("a", "s", {})
    assert slow.loaded == ["a"]
