"""Calls of several sessions are computed as one where that is known to take little: nobody waits long for a batch."""

from __future__ import annotations

import asyncio

import pytest
import torch

from nodewire.graph.program.format import Input, Node, Output, Program
from nodewire.graph.program.whitelist import Ref
from nodewire.kind import Limits, Turn
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.worker import WorkerProcess, calls
from tests.sessions import Named

SESSIONS = "abcdefgh"


@pytest.fixture
async def worker(tmp_path):
    program = Program(
        dims={"b": 16},
        volume=16,
        slots=len(SESSIONS),
        inputs=(Input("x", torch.float32, ("b", 4), "in"),),
        weights=(),
        nodes=(Node("y", "aten.neg.default", (Ref("x"),)),),
        outputs=(Output("out", "y", torch.float32, ("b", 4), "result"),),
    )
    (tmp_path / "program").write_bytes(program.encode())
    started = Named(await WorkerProcess.start("kinds.k8843_worker", Limits(32 * 2**20), readable=[tmp_path], batch=4))
    try:
        await started.load("t", "graph", tmp_path / "program", [])
        for session in SESSIONS:
            await started.open("t", session, {}, turn=Turn(customer=session, together=frozenset({"in"})))
        yield started
    finally:
        await started.stop()


async def all_at_once(worker, seq: int) -> int:
    """How many of the calls were in batches."""
    before, x = worker.figures.batched, torch.randn(2, 4)
    frame = Frame("in", seq, (Array("float32", (2, 4), x.numpy().tobytes()),), {})
    for (answer,) in await asyncio.gather(*(worker.receive("t", session, frame) for session in SESSIONS)):
        assert torch.equal(torch.frombuffer(bytearray(answer.tensors[0].data), dtype=torch.float32).reshape(2, 4), -x)
    return worker.figures.batched - before


async def test_what_is_known_to_be_short_is_computed_together(worker):
    await all_at_once(worker, 0)
    assert await all_at_once(worker, 1) >= 4


async def test_what_would_take_long_one_after_the_other_is_not(worker, monkeypatch):
    await all_at_once(worker, 0)
    monkeypatch.setattr(calls, "TOGETHER_US", 1)
    assert await all_at_once(worker, 1) == 0
