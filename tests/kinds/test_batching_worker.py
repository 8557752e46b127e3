"""Calls of several customers' jobs in one worker process: computed as one where the operator has said so."""

import asyncio

import numpy as np
import pytest
import pytest_asyncio
import torch
from safetensors.torch import save_file

from nodewire.errors import BadInput
from nodewire.graph.program.format import Input, Node, Output, Program, Weight
from nodewire.graph.program.whitelist import Ref
from nodewire.kind import Limits, Turn
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.worker import WorkerProcess
from tests.sessions import Named

F32 = torch.float32
WIDTH, SESSIONS = 64, 5
pytestmark = pytest.mark.asyncio(loop_scope="module")


def program(op: str, *args) -> bytes:
    return Program(
        dims={"b": 64},
        volume=64,
        slots=SESSIONS,
        inputs=(Input("x", F32, ("b", WIDTH), "in"),),
        weights=(Weight("w", F32, (WIDTH, WIDTH)),),
        nodes=(Node("y", op, args),),
        outputs=(Output("y", "y", F32, ("b", WIDTH), "out"),),
    ).encode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "apart").write_bytes(program("aten.linear.default", Ref("x"), Ref("w")))
    (folder / "mixed").write_bytes(program("aten.softmax.int", Ref("x"), 0))
    save_file({"w": torch.randn(WIDTH, WIDTH)}, folder / "w")
    return folder


async def started(folder, batch: int) -> WorkerProcess:
    worker = Named(await WorkerProcess.start("kinds.k8843_worker", Limits(10**7), readable=[folder], batch=batch))
    for task in ("apart", "mixed"):
        await worker.load(task, "graph", folder / task, [folder / "w"])
        for n in range(SESSIONS):
            await worker.open(task, f"s{n}", {}, turn=Turn(f"customer{n}"))
    return worker


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(folder):
    worker = await started(folder, batch=SESSIONS)
    yield worker
    await worker.stop()


def rows(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, WIDTH), np.float32)


def call(worker, task: str, n: int, x: np.ndarray):
    meta = {"chunk": n}
    return worker.receive(task, f"s{n}", Frame("in", n, (Array("float32", x.shape, x.tobytes()),), meta))


async def each_and_all(worker, task: str, counts) -> tuple[list, list, int]:
    """What calls answer one by one and at once, and in how many batches."""
    given = [rows(count, n) for n, count in enumerate(counts)]
    alone = [(await asyncio.gather(call(worker, task, n, x), return_exceptions=True))[0] for n, x in enumerate(given)]
    before = worker.figures.batches
    together = await asyncio.gather(*(call(worker, task, n, x) for n, x in enumerate(given)), return_exceptions=True)
    return alone, together, worker.figures.batches - before


def same(mine: list, theirs: list) -> None:
    (mine,), (theirs,) = mine, theirs
    assert (mine.edge, mine.seq, mine.meta) == (theirs.edge, theirs.seq, theirs.meta)
    a, b = (np.frombuffer(one.tensors[0].data, np.float32) for one in (mine, theirs))
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


async def test_calls_that_wait_for_the_same_task_are_computed_as_one(worker):
    alone, together, batches = await each_and_all(worker, "apart", (1, 3, 2, 5, 1))
    assert batches == 1
    for mine, theirs in zip(together, alone, strict=True):
        same(mine, theirs)


async def test_one_that_is_wrong_costs_the_others_nothing(worker):
    alone, together, batches = await each_and_all(worker, "apart", (1, 3, 65, 5, 1))
    assert batches == 1
    assert isinstance(together[2], BadInput)
    for n in (0, 1, 3, 4):
        same(together[n], alone[n])


async def test_a_task_that_mixes_rows_is_never_computed_for_several(worker):
    alone, together, batches = await each_and_all(worker, "mixed", (1, 3, 2, 5, 1))
    assert batches == 0
    for mine, theirs in zip(together, alone, strict=True):
        assert mine == theirs, "bit by bit"


async def test_without_the_operators_word_nothing_is(folder):
    worker = await started(folder, batch=1)
    try:
        alone, together, batches = await each_and_all(worker, "apart", (1, 3, 2, 5, 1))
        assert batches == 0
        assert together == alone, "bit by bit"
    finally:
        await worker.stop()
