"""Several processes as one worker: tasks are spread, and sessions go where their task is."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from nodewire.errors import NotFound
from nodewire.kind import Limits, Turn
from nodewire.protocol.tensors.frame import Frame
from nodewire.worker.persistent_worker import maker
from nodewire.worker.worker_group import Workers, several
from tests.sessions import Named


class Process:
    """Remembers what was asked of it; task names end with what they take."""

    def __init__(self) -> None:
        self.tasks, self.sessions = [], []

    async def load(self, task, engine, program, weights, slots=0):
        self.tasks.append(task)
        return {"memory_bytes": int(task.rpartition(".")[2]), "load_ms": 1}

    async def open(self, task, session, params, codings=None, turn=None):
        self.sessions.append((task, session, turn))
        return self


async def loaded(*tasks: str) -> tuple[Workers, list[Process]]:
    processes = [Process() for _ in range(2)]
    workers = Workers(processes)
    for task in tasks:
        await workers.load(task, "graph", None, [])
    return workers, processes


async def test_branches_that_are_neighbours_lie_apart():
    _, (first, second) = await loaded("fork.0", "left.0", "right.0", "join.0")
    assert (first.tasks, second.tasks) == (["fork.0", "right.0"], ["left.0", "join.0"])


async def test_what_takes_much_stands_beside_what_takes_little():
    _, (first, second) = await loaded("large.100", "a.30", "b.30", "c.30", "d.30")
    assert (first.tasks, second.tasks) == (["large.100"], ["a.30", "b.30", "c.30", "d.30"])


async def test_a_session_is_where_its_task_is():
    workers, processes = await loaded("a.1", "b.1")
    for task, process in zip(("a.1", "b.1"), processes, strict=True):
        assert await workers.open(task, "s", {}, turn=Turn("customer", 5)) is process
        assert process.sessions == [(task, "s", Turn("customer", 5))]
    with pytest.raises(NotFound):
        await workers.open("c.1", "s", {})


async def test_one_process_is_just_that():
    process = Process()
    assert several(lambda entry: process, 1)("entry") is process
    assert isinstance(several(lambda entry: Process(), 2)("entry"), Workers)


async def test_tasks_of_two_processes_are_computed_at_once(tmp_path):
    (tmp_path / "program").write_bytes(b"8")
    async with AsyncExitStack() as stack:
        make = maker(stack, Limits(50_000_000), tmp_path)
        workers = Named(several(make, 2)("tests.worker.worker_entry_for_tests"))
        for task in ("left", "right"):
            await workers.load(task, "any", tmp_path / "program", [])
            await workers.open(task, "s", {})
        slow = asyncio.create_task(workers.receive("left", "s", Frame("e", 0, (), {"do": "sleep", "ms": 2_000})))
        await asyncio.sleep(0)
        await workers.receive("right", "s", Frame("e", 0))
        assert not slow.done()
        await slow
