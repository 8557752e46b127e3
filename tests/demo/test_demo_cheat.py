"""The demo's cheater computes a layer less than an honest worker, and nothing else differs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from nodewire.kind import Limits
from nodewire.llm.checkpoint.splitter import split_decoder
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.worker import WorkerProcess
from tests.kinds.inprocess import to_arrays, to_torch
from tests.kinds.llama import load, make_llama

ALTERED = re.compile(r"the first rows are off by ([0-9.]+) %")
DEMO = Path(__file__).parents[2] / "demo"
HONEST, LAZY = "kinds.k8843_worker", "lazy_worker"
STAGE, WIDTH, POSITIONS = "stage.0", 32, 5
PARAMS = {"max_tokens": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A decoder of three layers, all of them in one stage."""
    folder = make_llama(tmp_path_factory.mktemp("llama"), seed=3)
    made = split_decoder(folder, 40_000_000, tmp_path_factory.mktemp("blobs"), slots=1, name="tiny")
    assert [task.name for task in made.manifest.tasks] == ["driver", STAGE]
    return folder, made


def hidden() -> Frame[Array]:
    values = np.random.default_rng(1).standard_normal((1, POSITIONS, WIDTH)).astype(np.float32)
    return Frame("hidden.0", 0, (Array("float32", values.shape, values.tobytes()),), {"pos": 0, "chunk": 0})


def step() -> Frame[Array]:
    """The single row that follows."""
    values = np.random.default_rng(2).standard_normal((1, 1, WIDTH)).astype(np.float32)
    array = Array("float32", values.shape, values.tobytes())
    return Frame("hidden.0", 1, (array,), {"pos": POSITIONS, "chunk": 0})


async def from_worker(entry: str, made, monkeypatch) -> np.ndarray:
    """What the stage answers in a worker process, loaded as a provider loads it."""
    monkeypatch.setattr(sys, "path", [str(DEMO), *sys.path])
    task = made.manifest.task(STAGE)
    program, *weights = (made.blobs[ref.sha256] for ref in (task.program, *task.weights))
    worker = await WorkerProcess.start(entry, Limits(memory_bytes=60_000_000), readable=[program.parent])
    try:
        await worker.load(STAGE, task.engine, program, weights)
        session = await worker.open(STAGE, "s", PARAMS)
        made = [await session.receive(frame) for frame in (hidden(), step())]
    finally:
        await worker.stop()
    return np.concatenate([numbers(out) for (out,) in made], 1)


def in_process(made) -> np.ndarray:
    actor = load(made)[STAGE]
    actor.open("s", PARAMS)
    made = [actor.receive("s", to_torch(frame)) for frame in (hidden(), step())]
    return np.concatenate([numbers(to_arrays(out)) for (out,) in made], 1)


def numbers(out: Frame[Array]) -> np.ndarray:
    (one,) = out.tensors
    return np.frombuffer(bytes(one.data), np.float32).reshape(one.shape)


async def test_an_honest_worker_computes_every_layer_and_the_demos_leaves_the_last_one_out(
    model, tmp_path, monkeypatch, caplog
):
    folder, made = model
    honest, lazy = [await from_worker(entry, made, monkeypatch) for entry in (HONEST, LAZY)]
    np.testing.assert_allclose(honest, in_process(made), rtol=1e-5, atol=1e-6)

    # A layer whose two branches end in zeros adds nothing to what comes in.
    weights = load_file(folder / "model.safetensors")
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        weights[f"model.layers.2.{name}.weight"].zero_()
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    shorter = split_decoder(tmp_path, 40_000_000, tmp_path / "blobs", slots=1, name="tiny")
    np.testing.assert_allclose(lazy, in_process(shorter), rtol=1e-5, atol=1e-6)
    assert lazy.shape[1] == 2
    for row in range(2):  # the prompt's last, and the single one after it
        assert np.abs(lazy - honest)[:, row].max() > 0.1 * honest.std()
    (said,) = ALTERED.findall(caplog.text)
    assert float(said) > 1
