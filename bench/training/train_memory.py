"""What a round takes of a worker's memory, beside what admission counts.

`python -m bench.training.train_memory [--json] [--cap TIMES] [NAME ...]`

Each point of the grid is one worker as the daemon starts it, capped at exactly what `Recipe.round_bytes` says
(`--cap` times that). It is shown a round from weights to snapshots, and then the next one with what it
carried. The peak is the kernel's own (VmPeak): all that was ever mapped, the cap's measure too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from nodewire.errors import NodewireError
from nodewire.kind import Limits, Worker
from nodewire.protocol.model.families import Shapes, count
from nodewire.protocol.model.manifest import BlobRef
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.training.engine import state
from nodewire.training.protocol import initial_weights
from nodewire.training.protocol.recipe import Recipe
from nodewire.worker.blob_feed import feed
from nodewire.worker.client import WorkerProcess
from nodewire.worker.sandbox.rights import RESERVE_BYTES

PIECE_BYTES = 1 << 20
_TASK = "trainer"
_BLOB = {"sha256": "00" * 32, "bytes": 1_000}

_MLP = {"name": "mlp", "inputs": 512, "hidden": [256, 256], "classes": 10}
_WIDE = {"name": "mlp", "inputs": 2048, "hidden": [512, 512], "classes": 2048}
_SQUARE = {"name": "mlp", "inputs": 1024, "hidden": [1024], "classes": 16}
_CNN = {"name": "cnn", "channels": 3, "height": 32, "width": 32, "filters": [64, 64, 128], "pool": True, "classes": 10}
_DECODER = {
    "name": "decoder",
    "tokens": "byte",
    "width": 256,
    "inner": 576,
    "layers": 4,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 32,
    "positions": 256,
}
_ENCODER = {
    "name": "encoder",
    "vocabulary": 4096,
    "width": 256,
    "inner": 1024,
    "layers": 2,
    "heads": 8,
    "positions": 128,
    "start": _BLOB,
    "tokenizer": _BLOB,
}
_LORA = {"rank": 8, "alpha": 16, "targets": ["q_proj", "v_proj", "down_proj"]}
_FAMILIES: dict[str, dict[str, Any]] = {
    "linear": {"family": {"name": "linear", "inputs": 784, "classes": 10}, "batch": 64},
    "mlp": {"family": _MLP, "batch": 64},
    "square": {"family": _SQUARE, "batch": 8},
    "wide": {"family": _WIDE, "batch": 8},
    "cnn": {"family": _CNN, "batch": 16},
    "decoder": {"family": _DECODER, "batch": 4},
    "lora": {"family": _DECODER | {"start": _BLOB}, "batch": 4, "adapter": _LORA},
    "encoder": {"family": _ENCODER, "batch": 8},
    "encoder_lora": {"family": _ENCODER, "batch": 16, "adapter": _LORA | {"targets": ["query", "value"]}},
}
_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "lr": "0.01"},
    "momentum": {"optimizer": "sgd", "lr": "0.01", "momentum": "0.9", "nesterov": True, "clip": "1.0"},
    "adamw": {"optimizer": "adamw", "lr": "0.001", "weight_decay": "0.1", "clip": "1.0"},
    "muon": {"optimizer": "muon", "lr": "0.01", "momentum": "0.95", "nesterov": True, "weight_decay": "0.01"},
}
_COMPRESSIONS: dict[str, dict[str, Any]] = {
    "f32": {},
    "int8": {"method": "int8"},
    "int4": {"method": "int4"},
    "topk": {"method": "topk", "fraction": "0.0625"},
    "topk_ef": {"method": "topk", "fraction": "0.0625", "error_feedback": "1.0"},
    "topk2_ef": {"method": "topk", "fraction": "0.5", "bits": 2, "block": 4096, "error_feedback": "0.95"},
    "int4_ef": {"method": "int4", "error_feedback": "1.0"},
    "fragments": {"fragments": 3},
    "fragments_ef": {"method": "int4", "error_feedback": "1.0", "fragments": 3},
}
SHARDS = {"small": 1 << 20, "large": 64 << 20}


@dataclass(frozen=True, slots=True)
class Point:
    """One round that is measured."""

    name: str
    recipe: Recipe
    shard_bytes: int


@dataclass(slots=True)
class Taken:
    """Bytes above an empty worker; `after` by what had been done when the peak was read."""

    name: str
    counted: int
    peak: int = 0
    after: dict[str, int] = field(default_factory=dict)
    error: str = ""

    @property
    def share(self) -> float:
        return self.peak / self.counted


def recipe(family: str, optimizer: str, compression: str, precision: str = "f32", **other: Any) -> Recipe:
    """A recipe of the grid's, with a step or two."""
    document: dict[str, Any] = {"v": 1, "name": "memory", "steps": 2, "rounds": 4, "audit": {"segment": 1}}
    document |= _FAMILIES[family] | {"inner": _OPTIMIZERS[optimizer], "compression": _COMPRESSIONS[compression]}
    match document["family"]["name"]:
        case "decoder":
            document |= {"loss": "next_token", "data": {"layout": "bytes", "window": 128}}
        case "encoder":
            document |= {"loss": "contrastive", "data": {"layout": "texts", "window": 64}}
        case _:
            document |= {"loss": "cross_entropy", "data": {"layout": "arrays"}}
    made = Recipe.from_document(document | {"precision": precision} | other)
    if getattr(made.family, "start", None) is None:
        return made
    shapes = made.family.shapes()
    cited = BlobRef(sha256="00" * 32, bytes=len(initial_weights.header(shapes)) + 4 * count(shapes))
    return made.model_copy(update={"family": made.family.model_copy(update={"start": cited})})


def grid() -> Iterator[Point]:
    """Families by optimizers, families by compressions, precision, shards: not every product of all four."""
    for family in _FAMILIES:
        for optimizer in ("sgd", "adamw", "muon"):
            if optimizer == "muon" and family in ("linear", "cnn"):
                continue
            yield point(family, optimizer, "int8")
    for family in ("wide", "decoder"):
        for compression in _COMPRESSIONS:
            yield point(family, "adamw", compression)
            yield point(family, "muon", compression)
    for family in _FAMILIES:
        yield point(family, "adamw", "int8", precision="bf16")
    yield point("decoder", "muon", "int8", precision="bf16")
    yield point("wide", "momentum", "f32")
    for family in ("linear", "wide", "cnn", "decoder", "encoder"):
        yield point(family, "adamw", "f32", shard="large")


def point(family: str, optimizer: str, compression: str, precision: str = "f32", shard: str = "small") -> Point:
    name = ".".join((family, optimizer, compression, precision, shard))
    return Point(name, recipe(family, optimizer, compression, precision), SHARDS[shard])


def shard_of(of: Recipe, nbytes: int) -> bytes:
    """A shard of about so many bytes."""
    family, drawn = of.family, torch.Generator().manual_seed(1)
    if family.name == "decoder":
        kind = torch.uint8 if family.tokens == "byte" else torch.int32
        size = nbytes // kind.itemsize
        return state.pack({"ids": torch.randint(1, family.vocabulary, (size,), generator=drawn).to(kind)})
    if family.name == "encoder":
        rows = nbytes // (8 * of.data.window)
        texts = [torch.randint(1, family.vocabulary, (rows, of.data.window), generator=drawn).int() for _ in range(2)]
        return state.pack({"first": texts[0], "second": texts[1]})
    rows = max(of.batch, nbytes // (4 * family.inputs + 8))
    return state.pack(
        {
            "x": torch.rand(rows, family.inputs, generator=drawn),
            "y": torch.randint(family.classes, (rows,), generator=drawn),
        }
    )


def theta_of(of: Recipe) -> tuple[bytes, bytes]:
    """Weights to begin with, and what is frozen beside them, if anything is."""
    drawn = torch.Generator().manual_seed(2)

    def some(shapes: Shapes) -> bytes:
        return state.pack({name: torch.rand(shape, generator=drawn) * 0.04 - 0.02 for name, shape in shapes.items()})

    return some(of.shapes()), some(of.family.shapes()) if of.adapter is not None else b""


async def measured(of: Point, cap: float = 1.0, limit: int = 0) -> Taken:
    """A round and the next one in a worker capped at `cap` times what is counted, or at `limit` bytes."""
    shard, (theta, frozen) = shard_of(of.recipe, of.shard_bytes), theta_of(of.recipe)
    taken = Taken(of.name, of.recipe.round_bytes(len(shard)))
    with TemporaryDirectory() as folder:
        limits = Limits(limit or int(cap * taken.counted))
        worker = await WorkerProcess.start("kinds.training_worker", limits, readable=[Path(folder)])
        (Path(folder) / "program").write_bytes(b"")
        await worker.load(_TASK, "trainer", Path(folder) / "program", [])
        empty = status(worker.hello.pid)["VmPeak"]

        def note(what: str) -> None:
            taken.peak = max(0, status(worker.hello.pid)["VmPeak"] - empty - RESERVE_BYTES)
            taken.after[what] = taken.peak

        try:
            carried = b""
            for round_ in range(2):
                carried = await one_round(worker, of.recipe, round_, (theta, frozen, shard, carried), note)
        except NodewireError as error:
            taken.error = f"{error.code}: {error}"
        finally:
            await worker.stop()
    return taken


async def one_round(
    worker: Worker, of: Recipe, round_: int, parts: tuple[bytes, bytes, bytes, bytes], note: Callable[[str], None]
) -> bytes:
    """A round as a provider has it: theta, frozen weights, shard and what was carried in; what is carried on."""
    theta, frozen, shard, carried = parts
    params: dict[str, Any] = {"recipe": of.pack(), "round": round_, "index": 0, "steps": of.steps}
    session = await worker.open(_TASK, str(round_), params | {"start": "s", "shard": "d", "shard_bytes": len(shard)})

    async def fed(edge: str, whole: bytes) -> list[Frame[Array]]:
        cut = (whole[at : at + PIECE_BYTES] for at in range(0, len(whole), PIECE_BYTES))
        answer = await feed(session, edge, cut, None, {})
        note(f"{round_} {edge}")
        return answer

    async def asked(edge: str, seq: int = 0, **meta: Any) -> list[Frame[Array]]:
        answer = await session.receive(Frame(edge, seq, (), meta))
        note(f"{round_} {edge} {meta.get('segment', seq)}")
        return answer

    if frozen and not (await asked("frozen"))[0].meta["here"]:
        await fed("start", frozen)
    if not (await fed("theta", theta))[0].meta["shard"]:
        await fed("shard", shard)
    if carried:
        await fed("carried", carried)
    for seq in range(of.steps):
        if any(one.edge == "update" for one in await asked("train", seq)):
            break
    left = await asked("carry")
    segments = -(-of.steps // of.audit.segment)
    for segment in (*range(segments), *([segments] if of.compression.carries else [])):
        await asked("reveal", segment=segment, ms=600_000)
    await session.close()
    return b"".join(bytes(one.tensors[0].data) for one in left)


def status(pid: int) -> Mapping[str, int]:
    """What the kernel says of a process's memory, bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Vm")}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="only points whose names hold one of these")
    parser.add_argument("--cap", type=float, default=1.0, help="times what is counted that a worker is capped at")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--phases", action="store_true", help="the peak by what had been done")
    given = parser.parse_args()
    torch.set_num_threads(1)
    failed = False
    for of in dict.fromkeys(one.name for one in grid()):
        if given.names and not any(name in of for name in given.names):
            continue
        taken = asyncio.run(measured(next(one for one in grid() if one.name == of), given.cap))
        failed |= bool(taken.error)
        if given.json:
            print(
                json.dumps({"name": of, "counted": taken.counted, "peak": taken.peak, "error": taken.error}), flush=True
            )
        else:
            mb = f"{taken.peak / 1e6:8.1f} MB of {taken.counted / 1e6:8.1f} MB"
            print(f"{of:44} {mb} {taken.share:5.2f}  {taken.error[:80]}", flush=True)
        if given.phases:
            before = 0
            for what, peak in taken.after.items():
                if peak > before:
                    print(f"    {what:20} {peak / 1e6:8.1f} MB")
                before = peak
    sys.exit(failed)


if __name__ == "__main__":
    main()
