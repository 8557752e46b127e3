"""What a decoder's stages take of memory, beside what their manifest predicts: a part of `bench.tasks.task_memory`.

- foreseen: configurations that people have, at a target, by their config.json alone. What all tasks are predicted to
  take beside what nobody can do without: the weights, and keys and values of the sessions' positions.
- measured: a Llama of a billion random weights in bfloat16, in four stages. Each runs in a worker as a provider starts
  it, capped at what is predicted; its sessions are read to the end of their context, so that all of it is touched.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from bench.tasks.decode_model import WIDTH, write_large
from bench.training.train_memory import status
from nodewire.errors import NodewireError
from nodewire.kind import Limits, Registration
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.protocol.model.kv_pages import pages_of
from nodewire.protocol.model.manifest import Task
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.worker.client import WorkerProcess

CONFIGS = Path(__file__).parents[1] / "configs"
CARD_BYTES, CONTEXT, SESSIONS = 8 * 10**9, 8_192, 4
FORESEEN = ("llama-3.1-8b", "qwen3-8b", "mistral-7b-v0.3", "phi-3.5-mini", "gemma-3-12b")
LAYERS, STAGES, MEASURED_CONTEXT = 20, 4, 2_048
QUICK_LAYERS, QUICK_CONTEXT = 4, 512


def foreseen(name: str) -> dict[str, Any]:
    """A model's tasks at a card's size, four sessions of 8,192 positions: predicted bytes, and what is least."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(CONFIGS / f"{name}.json", Path(folder) / "config.json")
        manifest = split_decoder(
            Path(folder), CARD_BYTES, None, slots=SESSIONS, options=DecoderOptions(context=CONTEXT)
        ).manifest
    weights = sum(blob.bytes for task in manifest.tasks for blob in task.weights)
    kv = SESSIONS * pages_of(CONTEXT) * sum(task.page_bytes for task in manifest.tasks)
    predicted = sum(task.memory_bytes for task in manifest.tasks)
    return {
        "tasks": len(manifest.tasks),
        "predicted": predicted,
        "weights": weights,
        "kv": kv,
        "of_weights_and_kv": round(predicted / (weights + kv), 4),
    }


async def measured(*, quick: bool) -> dict[str, dict[str, Any]]:
    """By stage, what is predicted and what its process took."""
    context = QUICK_CONTEXT if quick else MEASURED_CONTEXT
    with tempfile.TemporaryDirectory(prefix="nw-stages-") as name:
        folder = Path(name)
        write_large(folder / "model", QUICK_LAYERS if quick else LAYERS)
        made = split_decoder(
            folder / "model",
            None,
            folder / "blobs",
            slots=SESSIONS,
            split=STAGES,
            options=DecoderOptions(context=context, dtype="bfloat16"),
        )
        shutil.rmtree(folder / "model")
        return {task.name: await _stage(made, task, context) for task in made.manifest.tasks[1:]}


async def _stage(made: Registration, task: Task, context: int) -> dict[str, Any]:
    program, weights = made.blobs[task.program.sha256], [made.blobs[blob.sha256] for blob in task.weights]
    worker = await WorkerProcess.start(
        "kinds.k8843_worker", Limits(task.memory_bytes), readable=[program.parent], call_timeout_s=3_600.0
    )
    edge = made.manifest.inputs(task.name)[0].name
    x = torch.randn(1, context, WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16()
    array = Array("bfloat16", tuple(x.shape), memoryview(x.flatten().view(torch.uint8).numpy()))
    error = ""
    try:
        empty = status(worker.hello.pid)
        await worker.load("task", task.engine, program, weights, SESSIONS)
        for number in range(SESSIONS):
            session = await worker.open("task", f"s{number}", {"positions": context})
            await session.receive(Frame(edge, 0, (array,), {"pos": 0, "chunk": 0, "tokens": context}))
        taken = status(worker.hello.pid)
    except NodewireError as failed:
        error, taken = f"{failed.code}: {failed}"[:200], empty
    finally:
        await worker.stop()
    private, peak = (taken[name] - empty[before] for name, before in (("VmData", "VmData"), ("VmHWM", "VmRSS")))
    return {
        "predicted": task.memory_bytes,
        "private": private,
        "resident_peak": peak,
        "measured_of_predicted": round(max(private, peak) / task.memory_bytes, 4),
        "error": error,
    }
