"""Models of full size, registered as anybody does it, each in a process of its own.

Of CLIP-B/32 and a Llama of 70 B there is a configuration alone: `nodewire register --dry-run`. A Llama of half a GB
lies in shards: a dry run, then a registration with a relay and its store, which runs the tasks beside the model, one
task and one weight at a time, and must never hold the weights together.

`python -m bench.tasks.split_large NAME` takes the time of the cut alone: from the normalized program to tasks whose
memory is known, without the export before it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bench.tools.command import ran
from nodewire.errors import NodewireError
from nodewire.graph.cut.decomposition import decompose
from nodewire.graph.families.builder import build
from nodewire.graph.families.inputs import LARGEST
from nodewire.graph.registration.directory_splitter import trace_built
from nodewire.graph.registration.register import normalized
from nodewire.protocol.model.manifest import CUSTOMER


@dataclass(frozen=True, slots=True)
class Large:
    """`most` is what one call holds together, by size."""

    config: Mapping[str, Any]
    target_bytes: int
    most: Mapping[str, int]


_LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
LARGE: Mapping[str, Large] = {
    "clip": Large(
        {
            "model_type": "clip",
            "architectures": ["CLIPModel"],
            "projection_dim": 512,
            "text_config": {"eos_token_id": 2},
            "vision_config": {"patch_size": 32},
        },
        512 * 10**6,
        {},
    ),
    "llama-70b": Large(
        {
            **_LLAMA,
            "vocab_size": 128_256,
            "hidden_size": 8_192,
            "intermediate_size": 28_672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "max_position_embeddings": 8_192,
        },
        12 * 2**30,
        {"batch": 1, "sequence": 512},
    ),
}
_SHARDED = {
    **_LLAMA,
    "vocab_size": 32_000,
    "hidden_size": 1_024,
    "intermediate_size": 4_096,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
}
_SHARDS = 4
_SHARDED_TARGET = "150MB"
_TIMES = 5


async def foreseen(name: str) -> dict[str, Any]:
    """What a dry run says of a configuration, and what it takes; `analysis_ms` is that of another process."""
    large = LARGE[name]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(large.config))
        most = [word for size, number in large.most.items() for word in ("--most", f"{size}={number}")]
        options = ("--dry-run", "--as-tensors", "--target-vram", str(large.target_bytes), *most)
        found = await ran("register", folder, *options)
    tasks, analysed = found.said["tasks"], await _analysed(name)
    beside = min(task["memory_bytes"] - task["loaded_bytes"] for task in tasks)
    inner = [edge for edge in found.said["edges"] if CUSTOMER not in (edge["source"], edge["target"])]
    return {
        "seconds": round(found.seconds, 2),
        "cpu_s": round(found.cpu_s, 2),
        "peak_rss_bytes": found.peak_rss_bytes,
        **analysed,
        "graph_bytes": sum(task["program_bytes"] for task in tasks),
        "tasks": len(tasks),
        "target_bytes": large.target_bytes,
        "largest_task_bytes": max(task["memory_bytes"] for task in tasks),
        # No cut can do with fewer: each task takes this much beside weights, and all weights are in some task.
        "least_tasks": -(-analysed["weights_bytes"] // (large.target_bytes - beside)),
        "most_tensors_on_a_boundary": max((len(edge["tensors"]) for edge in inner), default=0),
        "upload_bytes": found.said["upload_bytes"],
        "report": found.said["report"],
    }


async def sharded() -> dict[str, Any]:
    """Peak memory of a dry run and of a registration of a model in shards, and how large the model is."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        weights_bytes = _write_shards(folder)
        options = (str(folder), "--as-tensors", "--target-vram", _SHARDED_TARGET)
        dry = await ran("register", *options, "--dry-run")
        async with _relay(Path(scratch)) as servers:
            real = await ran("register", *options, *servers)
    agree = ("tasks", "edges", "upload_bytes")
    return {
        "weights_bytes": weights_bytes,
        "largest_task_bytes": max(task["memory_bytes"] for task in real.said["tasks"]),
        "shards": _SHARDS,
        "tasks": len(real.said["tasks"]),
        "upload_bytes": real.said["upload_bytes"],
        "dry_is_as_real": all(dry.said[key] == real.said[key] for key in agree),
        "dry": {"seconds": round(dry.seconds, 2), "peak_rss_bytes": dry.peak_rss_bytes},
        "real": {"seconds": round(real.seconds, 2), "peak_rss_bytes": real.peak_rss_bytes},
    }


def _write_shards(folder: Path) -> int:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(_SHARDED))
    tensors = build(_SHARDED).module.state_dict()
    names, where, total = sorted(tensors), {}, 0
    generator = torch.Generator().manual_seed(5)
    for number in range(_SHARDS):
        own = names[number::_SHARDS]
        made = {one: torch.randn(tensors[one].shape, generator=generator).to(tensors[one].dtype) for one in own}
        total += sum(tensor.nbytes for tensor in made.values())
        where |= dict.fromkeys(own, f"model-{number}.safetensors")
        save_file(made, folder / f"model-{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return total


@asynccontextmanager
async def _relay(folder: Path) -> AsyncIterator[tuple[str, ...]]:
    """A relay with its store; the options that name them, and a key."""
    command = ("relay", "--port", "0", "--db", str(folder / "relay.db"), "--blobs", str(folder / "blobs"), "--json")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "nodewire.cli", *command, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        ready = json.loads(await process.stdout.readline())
        yield "--relay", ready["url"], "--blossom", ready["blossom"], "--key", str(folder / "author.nsec")
    finally:
        process.terminate()
        await process.wait()


async def _analysed(name: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.tasks.split_large", name, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise NodewireError(name, f"its analysis ended with {process.returncode}")
    found: dict[str, Any] = json.loads(said)
    return found


def _main(name: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    large = LARGE[name]
    built = build(large.config, LARGEST, large.most)
    began = time.monotonic()
    traced = trace_built(built)
    exported_s = time.monotonic() - began
    whole = normalized(traced)
    took_ms = []
    for _ in range(1 + _TIMES):
        began = time.perf_counter()
        decompose(whole, traced.shapes, large.target_bytes, built.called.least)
        took_ms.append(round((time.perf_counter() - began) * 1e3, 1))
    return {
        "nodes": len(whole.nodes),
        "weights_bytes": sum(weight.nbytes for weight in whole.weights),
        "export_s": round(exported_s, 2),
        "first_analysis_ms": took_ms[0],
        "analysis_ms": took_ms[1:],
    }


if __name__ == "__main__":
    print(json.dumps(_main(sys.argv[1])))
