"""How many cheats audits of training catch, at what cost, and how many honest rounds they reject:
`python -m bench.training.fraud [--json] [--quick]`.

Skipped work: a provider makes half of a round's segments (the first half; every other one; half at random) and invents
the snapshots of the others on the way that it was going; it commits, segments are drawn, and the drawn ones computed
again. A round is caught if one of them is other work. 34 segments, of which 15 % are drawn.

Honest work: rounds of three families, trained by processes with other thread counts and instruction sets than the
auditor's (as far as this machine has them), audited in the same way.

Lines: the share of skipped rounds that is caught, the share of a round's steps that audits compute again, honest
rounds, the share of them that is rejected, and how many of them had other bits than the auditor, without which it says
nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.report import Report, run
from bench.training.retrain import committed, read_shards, read_thetas
from nodewire.errors import NodewireError
from nodewire.training.engine import data, segments, state, validation
from nodewire.training.engine.data import Shard
from nodewire.training.engine.families import initial
from nodewire.training.engine.inner_loop import Snapshot, Trainer
from nodewire.training.engine.state import State
from nodewire.training.engine.update import compression, outer_step
from nodewire.training.protocol.recipe import Recipe
from processes.progress import say

SEGMENTS, FRACTION = 34, "0.15"
SHARDS = 2
_RECIPE = f"""
name = "{{name}}"
loss = "{{loss}}"
steps = {SEGMENTS}
batch = 16
rounds = 1000
[audit]
segment = 1
fraction = {FRACTION}
[data]
{{data}}
[inner]
{{inner}}
[family]
{{family}}
"""
_SGD, _ADAMW = 'optimizer = "sgd"\nlr = 0.05\nmomentum = 0.9', 'optimizer = "adamw"\nlr = 0.001\nwarmup = 20'
_ARRAYS = {"loss": "cross_entropy", "data": 'layout = "arrays"', "inner": _SGD}
FAMILIES: Mapping[str, Mapping[str, str]] = {
    "mlp": {**_ARRAYS, "family": 'name = "mlp"\ninputs = 64\nhidden = [32]\nclasses = 10'},
    "cnn": {**_ARRAYS, "family": 'name = "cnn"\nchannels = 1\nheight = 8\nwidth = 8\nfilters = [8]\nclasses = 10'},
    "decoder": {
        "loss": "next_token",
        "data": 'layout = "bytes"\nwindow = 16\nblock = 64',
        "inner": _ADAMW,
        "family": 'name = "decoder"\nlayers = 1\nwidth = 32\nheads = 2\nkv_heads = 2\nhead_dim = 16\ninner = 64\n'
        'vocabulary = 256\npositions = 16\ntokens = "byte"',
    },
}
_ISA = {
    "widest": {},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "none": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
}


@dataclass(frozen=True, slots=True)
class Setting:
    threads: int
    isa: str
    mkldnn: bool = True

    @property
    def name(self) -> str:
        return f"{self.isa}, {self.threads} thread{'s'[: self.threads - 1]}{'' if self.mkldnn else ', no oneDNN'}"


SETTINGS = [Setting(threads, isa) for isa in _ISA for threads in (1, 2)] + [Setting(1, "widest", mkldnn=False)]


def recipe_of(name: str, seed: int) -> Recipe:
    return Recipe.from_toml(f"seed = {seed}\n" + _RECIPE.format(name=name, **FAMILIES[name]))


def dataset(recipe: Recipe, seed: int) -> dict[str, torch.Tensor]:
    """Numbers like digits, or text of few words, by the seed."""
    if recipe.data.layout == "bytes":
        words = random.Random(seed)
        text = b" ".join(words.choice([b"for", b"while", b"return", b"yield", b"x", b"y"]) for _ in range(4_000))
        return {"ids": torch.frombuffer(bytearray(text), dtype=torch.uint8)}
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.rand(10, 64, generator=generator)
    y = torch.arange(600) % 10
    return {"x": (prototypes[y] + 0.3 * torch.randn(600, 64, generator=generator)).clamp(0, 1), "y": y}


def audited(trainer: Trainer, made: Mapping[str, Any], theta: State, shard: Shard) -> tuple[bool, float]:
    """Whether the drawn segments stand, and by how much the worst is off."""
    worst = 0.0
    for segment in made["drawn"]:
        try:
            inputs = segments.RoundInputs(theta, shard, SEGMENTS)
            off = segments.recomputed(trainer, made["claim"], inputs, segment, made["shown"].get, made["packed"])
        except NodewireError:
            return False, float("inf")
        worst = max(worst, off)
    return validation.by_audit(trainer.recipe, worst).outcome == "accept", worst


def half(trainer: Trainer, theta: State, shard: Shard, round_: int, which: set[int]) -> dict[str, Any]:
    """A round in which only these segments are made; the others are invented, each a little further on the way."""
    recipe, snapshots = trainer.recipe, []
    at = trainer.beginning(theta)
    way = {name: torch.zeros_like(tensor) for name, tensor in theta.items()}
    for segment in range(SEGMENTS):
        if segment in which:
            after = trainer.segment(at, shard, round_, 0, 1)
            way = {name: after.theta[name] - at.theta[name] for name in theta}
        else:
            moved = {name: (at.theta[name] + way[name]).contiguous() for name in theta}
            after = Snapshot(segment + 1, moved, at.moments)
        snapshots.append(after)
        at = after
    delta = {name: at.theta[name] - tensor for name, tensor in theta.items()}
    packed, _ = compression.pack(delta, recipe.compression)
    return committed(recipe, round_, 0, [one.digest() for one in snapshots], snapshots, packed)


WHICH = {
    "the first half": lambda draw: set(range(SEGMENTS // 2)),
    "every other": lambda draw: set(range(0, SEGMENTS, 2)),
    "half at random": lambda draw: set(draw.sample(range(SEGMENTS), SEGMENTS // 2)),
}


def skipped(rounds: int, seed: int) -> dict[str, Any]:
    """Rounds of which half was skipped: how many were caught, by which half, and what the audits computed."""
    recipe, draw = recipe_of("mlp", seed), random.Random(seed)
    shards, _ = data.split(dataset(recipe, seed), SHARDS, recipe)
    trainer, theta, momenta = Trainer(recipe), initial(recipe), outer_step.start(recipe.outer, initial(recipe))
    caught, of, steps, honest = dict.fromkeys(WHICH, 0), dict.fromkeys(WHICH, 0), 0, 0
    for round_ in range(rounds):
        how = list(WHICH)[round_ % len(WHICH)]
        made = half(trainer, theta, shards[0], round_, WHICH[how](draw))
        of[how] += 1
        steps += len(made["drawn"])
        caught[how] += not audited(trainer, made, theta, shards[0])[0]
        whole = half(trainer, theta, shards[0], round_, set(range(SEGMENTS)))
        honest += audited(trainer, whole, theta, shards[0])[0]
        if round_ % 10 == 0:  # onwards, as honest rounds go; a model that has converged is not what is cheated on
            results = [trainer.train(theta, shard, round_, index) for index, shard in enumerate(shards)]
            theta, momenta = outer_step.step(
                recipe.outer, theta, momenta, [(one.samples, one.delta) for one in results]
            )
    return {
        "rounds": rounds,
        "caught": {how: {"caught": caught[how], "of": of[how]} for how in WHICH},
        "caught_share": sum(caught.values()) / rounds,
        "audit_share": steps / (rounds * SEGMENTS),
        "honest_passed": honest,
    }


def write_scene(folder: Path, recipe: Recipe, rounds: int, seed: int) -> None:
    """A training as every process begins its rounds: recipe, shards, theta before every round."""
    folder.mkdir()
    shards, _ = data.split(dataset(recipe, seed), SHARDS, recipe)
    trainer, theta, momenta = Trainer(recipe), initial(recipe), outer_step.start(recipe.outer, initial(recipe))
    (folder / "recipe").write_bytes(recipe.pack())
    for index, shard in enumerate(shards):
        (folder / f"{index}.shard").write_bytes(shard.packed)
    for round_ in range(rounds):
        (folder / f"{round_:05}.theta").write_bytes(state.pack(theta))
        results = [trainer.train(theta, shard, round_, index) for index, shard in enumerate(shards)]
        theta, momenta = outer_step.step(recipe.outer, theta, momenta, [(one.samples, one.delta) for one in results])


async def elsewhere(setting: Setting, scenes: Sequence[Path], out: Path) -> None:
    """The scenes' rounds, trained in a process of this setting."""
    job = out.with_suffix(".json")
    said = {"threads": setting.threads, "mkldnn": setting.mkldnn, "scenes": list(map(str, scenes)), "out": str(out)}
    job.write_text(json.dumps(said))
    env = {**os.environ, **_ISA[setting.isa]}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.training.retrain", str(job), env=env)
    if await process.wait():
        raise RuntimeError(f"bench.training.retrain ({setting.name}) ended with {process.returncode}")


def looked_at(scenes: Sequence[Path], out: Path) -> dict[str, dict[str, Any]]:
    """By family: what the auditor says of another's rounds."""
    found = {}
    for folder in scenes:
        recipe = Recipe.unpack((folder / "recipe").read_bytes())
        trainer, shards, thetas = Trainer(recipe), read_shards(folder, recipe), read_thetas(folder, recipe)
        rounds, rejected, unlike, worst = 0, 0, 0, 0.0
        for round_, theta in enumerate(thetas):
            for index, shard in enumerate(shards):
                made = read_made(out / f"{folder.name}-{round_}-{index}", round_, index)
                fine, off = audited(trainer, made, theta, shard)
                rounds, rejected, worst = rounds + 1, rejected + (not fine), max(worst, off)
                unlike += off > 0
        found[folder.name] = {"rounds": rounds, "rejected": rejected, "other_bits": unlike, "worst": worst}
    return found


def read_made(path: Path, round_: int, index: int) -> dict[str, Any]:
    states, packed = (path / "states").read_bytes(), (path / "packed").read_bytes()
    leaves = tuple(states[at : at + 32] for at in range(0, len(states), 32))
    return {
        "claim": segments.Claim(round_, index, leaves),
        "drawn": json.loads((path / "drawn").read_text()),
        "shown": {int(file.stem): file.read_bytes() for file in path.glob("*.snapshot")},
        "packed": packed,
    }


async def measure(report: Report, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    many = 60 if options.quick else options.rounds
    say(f"{many} rounds of which half is skipped")
    report.arms["skipped"] = half_done = await asyncio.to_thread(skipped, many, options.seed)
    report.line("skipped_caught", half_done["caught_share"], ">=", 0.95)
    report.line("audit_compute", half_done["audit_share"], "<=", 0.15)
    report.line("same_machine_honest_passed", half_done["honest_passed"] / many, "==", 1.0)
    per = 2 if options.quick else options.honest
    total = rejected = unlike = 0
    with tempfile.TemporaryDirectory() as folder:
        scenes = []
        for name in FAMILIES:
            scenes.append(Path(folder) / name)
            write_scene(scenes[-1], recipe_of(name, options.seed), per, options.seed)
        for number, setting in enumerate(SETTINGS):
            out = Path(folder) / f"setting-{number}"
            await elsewhere(setting, scenes, out)
            found = await asyncio.to_thread(looked_at, scenes, out)
            report.arms[setting.name] = found
            total += sum(one["rounds"] for one in found.values())
            rejected += sum(one["rejected"] for one in found.values())
            unlike += sum(one["other_bits"] for one in found.values())
            say(f"{setting.name}: {found}")
    report.line("honest_rounds", total, ">=", 1 if options.quick else 1_000)
    report.line("honest_rejected", rejected / total, "<=", 0.01)
    report.line("rounds_with_other_bits", unlike, ">=", 1)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=600, help="of which half is skipped")
    parser.add_argument("--honest", type=int, default=24, help="rounds of each family, of two shards each, per setting")


if __name__ == "__main__":
    run("fraud", __doc__, measure, add=add)
