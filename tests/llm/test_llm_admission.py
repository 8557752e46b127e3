"""A stage's pages in a real worker: who finds none is told busy, and nobody who has some notices."""

import pytest
import torch

from nodewire.errors import Busy, OverMemory
from nodewire.kind import Limits
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.entry import load
from nodewire.protocol.model.kv_pages import PAGE
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.worker import WorkerProcess
from tests.llm.llm_models import PLAIN, make_model

CONTEXT, WIDTH = 4 * PAGE, 64


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """A registration for two sessions of four pages, in one stage."""
    folder = tmp_path_factory.mktemp("model")
    directory = make_model(folder / "model", PLAIN, torch.float32)
    return split_decoder(directory, None, folder / "blobs", slots=2, split=1, options=DecoderOptions(context=CONTEXT))


@pytest.fixture
async def worker(cut):
    """A function that starts a worker of so much memory; and one that has it load the stage for so many sessions."""
    task = cut.manifest.tasks[1]
    program, weights = cut.blobs[task.program.sha256], [cut.blobs[blob.sha256] for blob in task.weights]
    started = []

    async def start(slots, memory_bytes=2**28):
        limits = Limits(memory_bytes)
        process = await WorkerProcess.start("kinds.k8843_worker", limits, readable=[program.parent])
        started.append(process)
        await process.load("stage", task.engine, program, weights, slots)
        return process

    yield start
    for process in started:
        await process.stop()


def rows(n: int, pos: int, seed: int) -> torch.Tensor:
    return torch.randn(1, n, WIDTH, generator=torch.Generator().manual_seed(1_000 * seed + pos))


async def said(session, n: int, pos: int, seed: int) -> torch.Tensor:
    x = rows(n, pos, seed)
    array = Array("float32", tuple(x.shape), x.numpy().tobytes())
    (answer,) = await session.receive(Frame("hidden.0", pos, (array,), {"pos": pos, "chunk": 0, "tokens": n}))
    return torch.frombuffer(bytearray(answer.tensors[0].data), dtype=torch.float32)


def alone(cut, total: int, seed: int) -> list[torch.Tensor]:
    """A session that has a stage for itself."""
    task = cut.manifest.tasks[1]
    weights = [cut.blobs[blob.sha256] for blob in task.weights]
    stage = load(task.engine, cut.blobs[task.program.sha256].read_bytes(), weights, Limits(2**28))
    stage.open("s", {"positions": total})
    answers = []
    for n, pos in [(PAGE, 0), *((1, pos) for pos in range(PAGE, total))]:
        frame = Frame("hidden.0", pos, (rows(n, pos, seed),), {"pos": pos, "chunk": 0, "tokens": n})
        answers.append(stage.receive("s", frame)[0].tensors[0].flatten())
    return answers


async def test_a_session_beyond_the_pages_is_busy_and_those_that_run_reach_their_end(cut, worker):
    """One slot of four pages: two sessions of two pages fill it. Refusals come in the midst of their decoding."""
    process, total = await worker(slots=1), 2 * PAGE
    sessions = [await process.open("stage", name, {"positions": total}) for name in "ab"]
    found = [[await said(session, PAGE, 0, seed)] for seed, session in enumerate(sessions)]
    for pos in range(PAGE, total):
        if pos % 8 == 0:
            with pytest.raises(Busy, match="1 pages of 64 positions are wanted, 0 are free"):
                await process.open("stage", "c", {"positions": 1})
        for seed, session in enumerate(sessions):
            found[seed].append(await said(session, 1, pos, seed))
    for seed in range(2):
        assert all(map(torch.equal, found[seed], alone(cut, total, seed)))
    await sessions[0].close()
    late = await process.open("stage", "c", {"positions": 2 * PAGE})
    assert torch.equal(await said(late, PAGE, 0, 0), found[0][0])


async def test_a_session_takes_what_it_may_need_and_not_the_whole_context(worker):
    process = await worker(slots=1)
    for name in "abcd":
        await process.open("stage", name, {"positions": PAGE})
    with pytest.raises(Busy):
        await process.open("stage", "e", {"positions": 1})


async def test_who_has_more_memory_has_more_pages_and_who_has_less_fewer(cut, worker):
    manifest = cut.manifest
    least = manifest.bytes_at("stage.0", 1)
    assert (
        manifest.bytes_at("stage.0", 2)
        == manifest.task("stage.0").memory_bytes
        == least + manifest.slot_bytes(["stage.0"])
    )
    small = await worker(slots=1, memory_bytes=least)
    await small.open("stage", "a", {})
    with pytest.raises(Busy):
        await small.open("stage", "b", {})
    large = await worker(slots=5, memory_bytes=manifest.bytes_at("stage.0", 5))
    for name in "abcde":
        await large.open("stage", name, {})
    with pytest.raises(Busy):
        await large.open("stage", "f", {"positions": 1})
    with pytest.raises(OverMemory, match=r"with 9 sessions of 256 positions needs \d+, the limit is \d+: 5 would fit"):
        await worker(slots=9, memory_bytes=manifest.bytes_at("stage.0", 5))
