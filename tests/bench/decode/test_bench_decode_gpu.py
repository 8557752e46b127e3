"""The bench of decoding on a GPU, as far as a CPU goes: both ways say the same tokens, and without a GPU it says so."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
import torch

from bench.decode.decode_gpu import TINY, Streams
from bench.tasks.decode_model import write_llama
from nodewire.llm.cuda_graphs.fx_capture import FxCapture


def test_streams_say_the_same_tokens_with_captured_steps_and_without(tmp_path):
    write_llama(tmp_path / "model", TINY, torch.float32)
    prompts = torch.randint(0, TINY["vocab_size"], (3, 10), generator=torch.Generator().manual_seed(4))
    cpu = torch.device("cpu")
    captured, plain = (Streams(tmp_path / "model", 3, torch.float32, cpu, how) for how in (FxCapture(), None))
    made, expected = (one.tokens(prompts, 30)[0] for one in (captured, plain))
    assert made.shape == (3, 30)
    assert torch.equal(made, expected)
    assert len(captured.graphs) == 1 and captured.graphs.replays == 26
    assert plain.graphs is None
    assert captured.weight_bytes > 4 * TINY["vocab_size"] * TINY["hidden_size"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
async def test_without_a_gpu_nothing_is_measured_and_that_is_said():
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.decode.decode_gpu", "--json",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, said = await process.communicate()
    assert process.returncode == 77
    assert json.loads(out)["arms"] == {} and b"needs a GPU of CUDA's" in said
