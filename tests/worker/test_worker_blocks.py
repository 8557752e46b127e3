"""Long frames of a decoder are computed in blocks, so that others wait for one of them; short ones go together."""

from __future__ import annotations

import asyncio

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from nodewire.errors import BadFrame
from nodewire.kind import Limits, Turn
from nodewire.llm.checkpoint.splitter import split_decoder
from nodewire.llm.entry import load
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.worker import WorkerProcess
from tests.sessions import Named

WIDTH, CONTEXT = 64, 1_024
SESSIONS = "abcd"


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """A stage of a tiny Llama: its program and weights, and the same in this process."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=CONTEXT,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {}, "merges": []}}')
    made = split_decoder(folder, 2**30, folder / "blobs", slots=len(SESSIONS))
    of = made.manifest.tasks[1]
    program, weights = made.blobs[of.program.sha256], [made.blobs[blob.sha256] for blob in of.weights]
    return program, weights, load(of.engine, program.read_bytes(), weights, Limits(2**30))


@pytest.fixture
async def worker(task):
    program, weights, _ = task
    folders = [program.parent]
    started = Named(await WorkerProcess.start("kinds.k8843_worker", Limits(256 * 2**20), readable=folders, batch=4))
    try:
        await started.load("t", "decoder.stage", program, weights)
        for session in SESSIONS:
            await started.open("t", session, {}, turn=Turn(customer=session))
        yield started
    finally:
        await started.stop()


def rows(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, n, WIDTH, generator=torch.Generator().manual_seed(seed))


def frame(x: torch.Tensor, pos: int, seq: int = 1, **meta) -> Frame[Array]:
    array = Array("float32", tuple(x.shape), x.contiguous().numpy().tobytes())
    return Frame("hidden.0", seq, (array,), {"pos": pos, "chunk": 0, "tokens": x.shape[1]} | meta)


def tensor(of: Frame[Array]) -> torch.Tensor:
    (array,) = of.tensors
    return torch.frombuffer(bytearray(array.data), dtype=torch.float32).reshape(array.shape)


def here(task, x: torch.Tensor, seq: int = 1, **meta) -> Frame[torch.Tensor]:
    _, _, stage = task
    stage.close("here")
    stage.open("here", {})
    (made,) = stage.receive("here", Frame("hidden.0", seq, (x,), {"pos": 0, "chunk": 0} | meta))
    return made


async def test_a_long_frame_is_what_it_is_whole_and_others_go_between(worker, task):
    x = rows(1_000)
    await worker.receive("t", "b", frame(rows(1), 0))  # what has been seen to be short
    long = asyncio.create_task(worker.receive("t", "a", frame(x, 0)))
    await asyncio.sleep(0)
    after = asyncio.create_task(worker.receive("t", "a", frame(rows(3), 1_000, seq=2)))
    for n in range(5):
        await worker.receive("t", "b", frame(rows(1), 1 + n))
        assert not long.done()
    (made,) = await long
    expected = here(task, x)
    assert (tensor(made) - expected.tensors[0]).abs().max() < 1e-5
    assert (made.seq, dict(made.meta)) == (1, {"pos": 0, "chunk": 0, "tokens": 1_000})
    ((last,), whole) = await after, here(task, torch.cat((x, rows(3)), 1))
    assert (tensor(last) - whole.tensors[0][:, 1_000:]).abs().max() < 1e-5


async def test_of_a_prompt_the_last_stage_sends_one_row(worker, task):
    x = rows(200)
    (made,) = await worker.receive("t", "a", frame(x, 0, seq=0))
    expected = here(task, x, seq=0)
    assert (tensor(made) - expected.tensors[0]).abs().max() < 1e-5
    assert dict(made.meta) == dict(expected.meta) == {"pos": 199, "chunk": 0, "tokens": 1}


async def test_a_large_tree_is_cut_like_a_chain(worker, task):
    x = rows(200)
    parents = b"".join(max(-1, n // 2 - 1).to_bytes(2, "little", signed=True) for n in range(200))
    (made,) = await worker.receive("t", "a", frame(x, 0, parents=parents))
    expected = here(task, x, parents=parents)
    assert (tensor(made) - expected.tensors[0]).abs().max() < 1e-5
    assert dict(made.meta) == dict(expected.meta)


async def test_frames_of_different_lengths_are_computed_together_and_one_error_is_one_sessions(worker, task):
    steps = {"a": frame(rows(1, 1), 0), "b": frame(rows(5, 2), 0), "c": frame(rows(2, 3), 7), "d": frame(rows(3, 4), 0)}
    for _ in range(3):  # how long they take is known from the second time on
        before = worker.figures.batched
        calls = (worker.receive("t", session, of) for session, of in steps.items())
        made = dict(zip(steps, await asyncio.gather(*calls, return_exceptions=True), strict=True))
        assert isinstance(made.pop("c"), BadFrame)
        for session, (answer,) in made.items():
            x = tensor(steps[session])
            assert (tensor(answer) - here(task, x).tensors[0]).abs().max() < 1e-5
    assert worker.figures.batched - before >= 2


async def test_a_session_that_closes_in_the_midst_of_a_long_frame_ends_it(worker):
    long = asyncio.create_task(worker.receive("t", "a", frame(rows(1_000), 0)))
    await worker.receive("t", "b", frame(rows(1), 0))
    await worker.close("t", "a")
    with pytest.raises(Exception, match="session"):
        await long
    await worker.open("t", "a", {})
    await worker.receive("t", "a", frame(rows(100), 0))
