"""Cuts a decoder into a driver and stages that fit a memory target, one safetensors file and one program for each."""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from nodewire.errors import BadInput, BadTask, OverMemory
from nodewire.kind import Registration
from nodewire.llm.config import DecoderConfig, read_config
from nodewire.llm.layers import layer_shapes
from nodewire.llm.loading import header
from nodewire.llm.programs import DTYPE_BYTES, EMBED, DriverProgram, Dtype, StageProgram, weights_bytes
from nodewire.protocol.manifest import CUSTOMER, BlobRef, Edge, Manifest, Task, Tensor

MAX_TOKENIZER_BYTES = 16_000_000
CHUNK = 64
_STORED = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def split_decoder(
    folder: Path,
    target_bytes: int,
    out: Path,
    *,
    slots: int = 4,
    name: str = "",
    compute: Dtype = "float32",
    positions: int = 0,
) -> Registration:
    """Cut the model in `folder` into the fewest, most even stages whose predicted peak is at most `target_bytes`.

    `positions` bounds a session (0: the model's context). Blobs are written to `out`, named by SHA-256; weights keep
    their stored dtype and are copied task by task, so that the whole model is never in memory.

    Raises:
        BadInput, BadTask: not a served model.
        OverMemory: the driver or a single layer needs more than the target; the error says how much.
    """
    config = read_config(folder)
    files = weight_files(folder)
    stored = stored_dtype(files, EMBED)
    positions = positions or config.context
    common: dict[str, Any] = {
        "config": config,
        "stored": stored,
        "compute": compute,
        "slots": slots,
        "positions": positions,
    }
    driver = DriverProgram(
        **common,
        chunk=CHUNK,
        tokenizer=read_tokenizer(folder),
        prompt="prompt",
        hidden="hidden.0",
        back="return",
        tokens="tokens",
    )
    if driver.memory_bytes() > target_bytes:
        raise OverMemory(
            "driver", f"embedding and head need {driver.memory_bytes():,} bytes, the target is {target_bytes:,}"
        )
    spans = cut(config, target_bytes, lambda a, b: _stage(common, a, b).memory_bytes())
    programs: list[tuple[str, DriverProgram | StageProgram]] = [("driver", driver)]
    for i, (first, last) in enumerate(spans):
        programs.append((f"stage.{i}", _stage(common, first, last, i)))

    blobs: dict[str, Path] = {}
    tasks, report = [], []
    for task_name, program in programs:
        weights = _write_weights(files, program.shapes(), out)
        code = _write(program.pack(), out)
        blobs |= {weights[0].sha256: weights[1], code[0].sha256: code[1]}
        limit = _limit(program, config, target_bytes)
        report.append(f"{task_name}: {program.memory_bytes():,} bytes; {limit}")
        tasks.append(
            Task(
                name=task_name,
                engine=program.engine,
                program=code[0],
                weights=(weights[0],),
                memory_bytes=program.memory_bytes(),
                slots=slots,
                flops=2 * weights_bytes(program.shapes(), 1),
                limit=limit,
            )
        )
    manifest = Manifest(
        name=name or folder.resolve().name.lower(),
        mode="generate",
        context=positions,
        chunk=CHUNK,
        tasks=tuple(tasks),
        edges=_edges(config, len(spans), compute, positions),
    )
    return Registration(manifest, blobs, tuple(report))


def cut(config: DecoderConfig, target_bytes: int, cost: Callable[[int, int], int]) -> list[tuple[int, int]]:
    """Contiguous spans of layers: as few as fit, and of those the most even.

    Raises:
        OverMemory: one layer alone does not fit.
    """
    if cost(0, 1) > target_bytes:
        raise OverMemory(
            "layer", f"one layer with its caches needs {cost(0, 1):,} bytes, the target is {target_bytes:,}"
        )
    for stages in range(1, config.layers + 1):
        small, larger = divmod(config.layers, stages)
        # All layers of the family cost the same, so the most even cut is also the one with the smallest maximum.
        bounds = [i * small + min(i, larger) for i in range(stages + 1)]
        spans = list(pairwise(bounds))
        if all(cost(a, b) <= target_bytes for a, b in spans):
            return spans
    raise AssertionError("one layer fits, so as many stages as layers do")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a Hugging Face folder, sharded or not. Raises BadInput if there are none."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(orjson.loads(index.read_bytes())["weight_map"].values()))
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise BadInput("model.safetensors.index.json", "malformed") from error
        if not all(isinstance(n, str) and re.fullmatch(r"[\w.-]+\.safetensors", n) for n in names):
            raise BadInput("model.safetensors.index.json", "names a file that is not beside it")
        files = [folder / n for n in names]
    else:
        files = [folder / "model.safetensors"]
    if missing := [f for f in files if not f.is_file()]:
        raise BadInput(missing[0].name, "is not in the folder")
    return files


def stored_dtype(files: Sequence[Path], tensor: str) -> str:
    """The dtype of `tensor` in the files, which is taken for all. Raises BadTask if it is not there or not served."""
    for path in files:
        entry = header(path).get(tensor)
        if entry is not None:
            if entry[0] not in _STORED:
                raise BadTask(tensor, f"dtype {entry[0]} is not served")
            return _STORED[entry[0]]
    raise BadTask(tensor, "missing from the weights")


def read_tokenizer(folder: Path) -> str:
    """tokenizer.json as text. Raises BadInput if it is missing or above 16 MB."""
    path = folder / "tokenizer.json"
    try:
        if path.stat().st_size > MAX_TOKENIZER_BYTES:
            raise BadInput("tokenizer.json", "more than 16 MB")
        return path.read_text("utf-8")
    except OSError as error:
        raise BadInput("tokenizer.json", "is not in the folder") from error


def _stage(common: dict[str, Any], first: int, last: int, index: int = 0) -> StageProgram:
    tail = last == common["config"].layers
    return StageProgram(
        **common,
        first=first,
        last=last,
        tail=tail,
        input=f"hidden.{index}",
        output="return" if tail else f"hidden.{index + 1}",
    )


def _edges(config: DecoderConfig, stages: int, compute: Dtype, positions: int) -> tuple[Edge, ...]:
    hidden = Tensor(name="hidden", dtype=compute, shape=("n", config.hidden))
    width = config.hidden * DTYPE_BYTES[compute]

    def edge(name: str, source: str, target: str, back: bool = False) -> Edge:
        return Edge(
            name=name,
            source=source,
            target=target,
            tensors=(hidden,),
            dims={"n": positions},
            bytes_per_position=width,
            back=back,
        )

    text = Tensor(name="text", dtype="uint8", shape=("bytes",))
    ids = Tensor(name="ids", dtype="int64", shape=("n",))
    inner = [edge(f"hidden.{i}", "driver" if i == 0 else f"stage.{i - 1}", f"stage.{i}") for i in range(stages)]
    return (
        Edge(
            name="prompt",
            source=CUSTOMER,
            target="driver",
            tensors=(text,),
            dims={"bytes": 1_000_000},
            bytes_per_position=4,
        ),
        *inner,
        edge("return", f"stage.{stages - 1}", "driver", back=True),
        Edge(name="tokens", source="driver", target=CUSTOMER, tensors=(ids,), dims={"n": 64}, bytes_per_position=8),
    )


def _limit(program: DriverProgram | StageProgram, config: DecoderConfig, target_bytes: int) -> str:
    """What bounded the cut, in words."""
    item = DTYPE_BYTES[program.compute]
    if isinstance(program, DriverProgram):
        table = config.vocab * config.hidden * item * (1 if config.tied else 2)
        return f"embedding and head are {table / 1e6:.1f} MB and stay together"
    layer = weights_bytes(layer_shapes(config, 0), item)
    kv = 2 * config.kv_heads * config.head_dim * program.positions * item * program.slots
    count = program.last - program.first
    return (
        f"layers {program.first}-{program.last - 1}: {count} x ({layer / 1e6:.2f} MB weights + {kv / 1e6:.2f} MB KV)"
        f" under {target_bytes / 1e6:.1f} MB"
    )[:128]


def _write_weights(files: Sequence[Path], shapes: dict[str, tuple[int, ...]], out: Path) -> tuple[BlobRef, Path]:
    by_file: dict[Path, list[str]] = defaultdict(list)
    for path in files:
        for name in header(path):
            if name in shapes:
                by_file[path].append(name)
    tensors: dict[str, torch.Tensor] = {}
    for path, names in by_file.items():
        with safe_open(path, framework="pt") as file:
            for name in names:
                tensors[name] = file.get_tensor(name)
    if missing := sorted(set(shapes) - tensors.keys()):
        raise BadTask(missing[0], "missing from the weights")
    scratch = out / f".weights-{os.getpid()}"
    save_file(tensors, scratch)
    return _adopt(scratch, out)


def _write(data: bytes, out: Path) -> tuple[BlobRef, Path]:
    scratch = out / f".program-{os.getpid()}"
    scratch.write_bytes(data)
    return _adopt(scratch, out)


def _adopt(scratch: Path, out: Path) -> tuple[BlobRef, Path]:
    """Rename a finished file to its hash."""
    with scratch.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    path = scratch.rename(out / sha256)
    return BlobRef(sha256=sha256, bytes=path.stat().st_size), path
