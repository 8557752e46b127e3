"""A process that trains rounds in its own way, as one provider of many would: `python -m bench.training.retrain JOB`.

JOB is a JSON file: `threads` of torch (more than a recipe's profile allows), `mkldnn`, `scenes` (files that
bench.training.fraud wrote: recipe, shards, theta before every round), `out`. What chooses the instruction set stands in
the environment. Of every round and shard it writes what a provider would: states, packed update, and the snapshots at
both ends of the segments that are drawn once it has committed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from nodewire.protocol.encoding import random_draw
from nodewire.training.engine import inner_loop, segments, state
from nodewire.training.engine.data import Shard
from nodewire.training.engine.inner_loop import Snapshot, Trainer
from nodewire.training.engine.state import State
from nodewire.training.engine.update import compression
from nodewire.training.protocol import round_close
from nodewire.training.protocol.recipe import Recipe
from nodewire.training.protocol.result import DeliveryDetails

AUTHOR, REQUEST = "ad" * 32, "5e" * 32


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    torch.backends.mkldnn.set_flags(job["mkldnn"])
    if job["threads"] > 1:  # who does not keep to the profile
        inner_loop._deterministic = contextlib.nullcontext
    out = Path(job["out"])
    for name in job["scenes"]:
        folder = Path(name)
        recipe = Recipe.unpack((folder / "recipe").read_bytes())
        trainer, shards = Trainer(recipe), read_shards(folder, recipe)
        for round_, theta in enumerate(read_thetas(folder, recipe)):
            for index, shard in enumerate(shards):
                write(out / f"{folder.name}-{round_}-{index}", trained(trainer, theta, shard, round_, index))


def trained(trainer: Trainer, theta: State, shard: Shard, round_: int, index: int) -> dict[str, Any]:
    """One shard's round by the book: `states`, `update`, `root`, and what is shown."""
    recipe, snapshots, states = trainer.recipe, [], []
    delta: State = {}
    for done in trainer.stretches(theta, shard, round_, index):
        snapshots.append(trainer.now(done.step))
        states.append(done.state)
        delta = done.update.delta if done.update is not None else delta
    packed, _ = compression.pack(delta, recipe.compression)
    return committed(recipe, round_, index, states, snapshots, packed)


def committed(
    recipe: Recipe, round_: int, index: int, states: list[bytes], snapshots: list[Snapshot], packed: bytes
) -> dict[str, Any]:
    """What a provider commits to, then has drawn by a close that depends on it, and then shows."""
    delivered = DeliveryDetails(
        key="00" * 32,
        sha256=hashlib.sha256(packed).hexdigest(),
        bytes=len(packed),
        samples=recipe.steps * recipe.batch,
        losses=(),
        states=tuple(state.hex() for state in states),
    )
    commitment = delivered.commitment(AUTHOR, REQUEST, round_, index)
    close = hashlib.sha256(b"close" + bytes.fromhex(commitment)).hexdigest()
    drawn = random_draw.draw(close, commitment, len(states), float(recipe.audit.fraction), round_close.MAX_DRAWN)
    shown = {end: segments.show(snapshots[end]) for end in round_close.ends(drawn)}
    return {"claim": segments.Claim(round_, index, tuple(states)), "drawn": drawn, "shown": shown, "packed": packed}


def write(path: Path, made: dict[str, Any]) -> None:
    path.mkdir(parents=True)
    (path / "states").write_bytes(b"".join(made["claim"].states))
    (path / "packed").write_bytes(made["packed"])
    (path / "drawn").write_text(json.dumps(made["drawn"]))
    for end, data in made["shown"].items():
        (path / f"{end}.snapshot").write_bytes(data)


def read_shards(folder: Path, recipe: Recipe) -> list[Shard]:
    return [Shard.unpack(path.read_bytes(), recipe) for path in sorted(folder.glob("*.shard"))]


def read_thetas(folder: Path, recipe: Recipe) -> list[State]:
    types = state.types(recipe.shapes())
    return [state.unpack(path.read_bytes(), types) for path in sorted(folder.glob("*.theta"))]


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
