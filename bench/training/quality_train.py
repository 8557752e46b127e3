"""How good a model DiLoCo makes: `python -m bench.training.quality_train [--json] [--quick] [--seed N]`: `make
quality-train`.

A byte-level decoder (123,200 parameters) learns the text of Python's standard library, on k = 4 shards of interleaved
blocks, every tenth block held out, in stateless rounds of H = 40 steps. Rounds are run by the bare loop
(`nodewire.training.engine.bare_loop`): what the market delivers equals it byte for byte (tests/training), so these are
its curves.

The inner optimizer is Muon, for both. A fresh AdamW in every round begins with steps that go by the signs of single
gradients, which are mostly noise, and a round is too short to make up for that; orthogonal steps begin better, and
better still if the rate rises within the round. Batches are large (32 x 64 bytes): what is noise in a worker's own
gradient, only synchronous averaging takes away.

Arms, each with three seeds (of the first weights, the deal of blocks, and the windows that steps read):

- central: one machine, k times the batch, as many steps, one optimizer throughout: equal samples and operations, which
  is what synchronous data-parallel training on k machines computes, with H times the exchanges.
- f32: DiLoCo, whole pseudo-gradients. int4: the same in blocks of 4 bits. dropped: the same as f32, but each result is
  lost with probability 1/2 (one of a round always comes), and a step of few is shorter (`outer.shards`): at
  full length it ends 3.6 to 4.4 % above f32.

Losses are nats a byte on the held-out blocks: 256 windows a round for the curves, 2,048 for the final ones. The ratios
of final losses are of equal seeds, the acceptance lines their medians.

Every arm and seed is kept in a file as soon as it is done (`--kept`): a run that was broken off goes on. `--tune` tries
the as many rates for both with the first seed. `--chart FILE.svg` draws the curves.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.report import Report, run
from processes.progress import say

K, STEPS, ROUNDS, QUICK_ROUNDS = 4, 40, 40, 4
BATCH, WINDOW, RISE = 32, 64, 5
SEEDS = 3
CURVE_SAMPLES, FINAL_SAMPLES = 256, 2_048
DROPPED = 0.5
ARMS = ("central", "f32", "int4", "dropped")
LABELS = {
    "central": "centralized, equal compute",
    "f32": "DiLoCo, f32",
    "int4": "DiLoCo, int4",
    "dropped": "DiLoCo, half of the results lost",
}
CENTRAL, DILOCO = ("0.03", "", ""), ("0.02", "0.9", "0.8")
"""Rate of the inner Muon; outer rate and momentum: the best of those tried for each.

docs/reference/measurement-history.md has the trials."""
TUNED = {
    "central": (("0.01", "", ""), ("0.02", "", ""), ("0.03", "", ""), ("0.04", "", "")),
    "f32": (("0.02", "0.7", "0.6"), ("0.02", "0.9", "0.6"), ("0.02", "0.9", "0.8"), ("0.02", "1.0", "0.7")),
}
"""The same number of tries for both, at `TUNED_ROUNDS` rounds with the first seed."""
TUNED_ROUNDS = 16
Rates = tuple[str, str, str]
WORST_RATIO, WORST_INT4, WORST_DROPPED, LEAST_SAVED = 1.03, 1.005, 1.03, 7.5


def document(arm: str, seed: int, rounds: int, rates: Rates | None = None) -> dict[str, Any]:
    """The recipe of an arm. Centralized it is one round of all steps, so that one optimizer makes them all."""
    central = arm == "central"
    rate, outer, momentum = rates or (CENTRAL if central else DILOCO)
    share = {"shards": K} if arm == "dropped" else {}
    return {
        "v": 1,
        "name": f"quality-{arm}",
        "family": {
            "name": "decoder", "tokens": "byte", "width": 64, "inner": 192, "layers": 2, "heads": 4, "kv_heads": 4,
            "head_dim": 16, "positions": WINDOW,
        },
        "loss": "next_token",
        "data": {"layout": "bytes", "window": WINDOW, "block": 4_096, "held_out": 10},
        "inner": {
            "optimizer": "muon", "lr": rate, "rest_lr": "0.002", "momentum": "0.9", "nesterov": True,
            "betas": ["0.9", "0.95"],
            "weight_decay": "0.1", "clip": "1.0", "schedule": "cosine", "warmup": STEPS, "total": rounds * STEPS,
            "floor": "0.1", "rise": 0 if central else RISE,
        },
        "outer": {} if central else {"method": "nesterov", "lr": outer, "momentum": momentum, **share},
        "steps": rounds * STEPS if central else STEPS,
        "batch": BATCH * (K if central else 1),
        "rounds": 1 if central else rounds,
        "seed": seed,
        "compression": {"method": "int4" if arm == "int4" else "f32"},
        "validation": {"samples": CURVE_SAMPLES},
        "audit": {"segment": STEPS},
    }  # fmt: skip


def text() -> bytes:
    """Python's standard library: the modules that stand in its own folder, by name."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return b"".join(file.read_bytes() for file in sorted(folder.glob("*.py")))


def trained(arm: str, seed: int, rounds: int, rates: Rates | None = None) -> Any:
    """One arm with one seed: {"losses" by round, "final", "upload_bytes", "seconds"}. Uses one thread."""
    import torch

    from nodewire.training.engine import bare_loop, data
    from nodewire.training.engine.inner_loop import Trainer
    from nodewire.training.protocol.recipe import Recipe

    torch.set_num_threads(1)
    began = time.process_time()
    recipe = Recipe.from_document(document(arm, seed, rounds, rates))
    dataset = {"ids": torch.frombuffer(bytearray(text()), dtype=torch.uint8)}
    losses: list[float] = []
    upload = 0

    def on_point(point: bare_loop.Point) -> None:
        nonlocal upload
        losses.append(point.held_out)
        upload += point.upload_bytes

    if arm == "central":
        theta = centralized(recipe, dataset, on_point)
    elif arm == "dropped":
        theta = with_losses(recipe, dataset, seed, on_point)
    else:
        theta, _ = bare_loop.run(recipe, dataset, K, on_round=on_point)
    held_out = data.split(dataset, K, recipe).held_out
    final = Trainer(recipe).loss(theta, data.samples(held_out, recipe, FINAL_SAMPLES))
    return {
        "losses": [round(loss, 5) for loss in losses],
        "final": round(final, 6),
        "upload_bytes": upload,
        "seconds": round(time.process_time() - began, 1),
    }


def centralized(recipe: Any, dataset: Any, on_point: Callable[[Any], None]) -> Any:
    """All steps on all shards' data, the held-out loss measured as often as after a round."""
    from nodewire.training.engine import bare_loop, data
    from nodewire.training.engine.families import initial
    from nodewire.training.engine.inner_loop import Trainer

    (shard,), held_out = data.split(dataset, 1, recipe)
    measured = data.samples(held_out, recipe, recipe.measured())
    trainer, measuring = Trainer(recipe), Trainer(recipe)
    theta = initial(recipe)
    for number, done in enumerate(trainer.stretches(theta, shard, 0, 0)):
        now = trainer.now(done.step).theta
        on_point(bare_loop.Point(number, done.loss, measuring.loss(now, measured), 0))
    return now


def with_losses(recipe: Any, dataset: Any, seed: int, on_point: Callable[[Any], None], lost: float = DROPPED) -> Any:
    """The bare loop, but each result is lost with this probability. Rounds are stateless, so what is lost need not even
    be computed."""
    from nodewire.training.engine import bare_loop, data
    from nodewire.training.engine.families import initial
    from nodewire.training.engine.inner_loop import Trainer
    from nodewire.training.engine.update import compression
    from nodewire.training.engine.update import outer_step as outer

    rng = random.Random(f"lost {seed}")
    shards, held_out = data.split(dataset, K, recipe)
    measured = data.samples(held_out, recipe, recipe.measured())
    trainer, theta = Trainer(recipe), initial(recipe)
    momenta = outer.start(recipe.outer, theta)
    for round_ in range(recipe.rounds):
        come = [index for index in range(K) if rng.random() >= lost] or [rng.randrange(K)]
        results, inner, size = [], 0.0, 0
        for index in come:
            update = trainer.train(theta, shards[index], round_, index)
            packed, _ = compression.pack(update.delta, recipe.compression)
            results.append((update.samples, compression.unpack(packed, recipe.shapes(), recipe.compression)))
            inner += sum(update.losses) / len(update.losses) / len(come)
            size += len(packed)
        theta, momenta = outer.step(recipe.outer, theta, momenta, results)
        on_point(bare_loop.Point(round_, inner, trainer.loss(theta, measured), size))
    return theta


class Kept:
    """Results by arm, seed and recipe in a JSON file, so that nothing is computed twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        self._text = hashlib.sha256(text()).hexdigest()

    async def of(self, arm: str, seed: int, rounds: int, rates: Rates | None = None) -> Any:
        said = json.dumps([document(arm, seed, rounds, rates), self._text, K, FINAL_SAMPLES, DROPPED])
        key = f"{arm} seed {seed} {hashlib.sha256(said.encode()).hexdigest()[:16]}"
        if key not in self._known:
            found = await asyncio.to_thread(trained, arm, seed, rounds, rates)
            self._known[key] = found
            self._path.parent.mkdir(parents=True, exist_ok=True)
            aside = self._path.with_suffix(".new")
            aside.write_text(json.dumps(self._known, indent=1))
            aside.rename(self._path)
        return self._known[key]


def chart(path: Path, arms: dict[str, Any], rounds: int) -> None:
    """The curves as an SVG: a line for the median of an arm's seeds, a band for all."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "nodewire"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 4.5), layout="constrained")
    at = range(1, rounds + 1)
    for arm in ARMS:
        curves = [one["losses"] for one in arms[arm]["seeds"].values()]
        columns = list(zip(*curves, strict=True))
        final = arms[arm]["final_median"]
        (line,) = axes.plot(
            at, [median(column) for column in columns], label=f"{LABELS[arm]}: {final:.3f}", linewidth=1.4
        )
        axes.fill_between(at, list(map(min, columns)), list(map(max, columns)), alpha=0.15, color=line.get_color())
    axes.set_xlabel(f"rounds of {STEPS} steps on {K} providers")
    axes.set_ylabel("held-out loss, nats a byte")
    low = min(loss for arm in ARMS for one in arms[arm]["seeds"].values() for loss in one["losses"])
    axes.set_ylim(low - 0.05, low + 1.2)
    axes.grid(alpha=0.3)
    axes.legend(title="median of three seeds; band: all of them", frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


async def measure(report: Report, options: argparse.Namespace) -> None:
    rounds = options.rounds or (QUICK_ROUNDS if report.quick else ROUNDS)
    kept = Kept(options.kept)
    if options.tune:
        await tune(report, kept, options.rounds or TUNED_ROUNDS, options.one)
        return
    seeds = [report.seed] if report.quick else [report.seed + i for i in range(SEEDS)]
    for arm in options.arms:
        for seed in seeds:
            found = await kept.of(arm, seed, rounds)
            report.arms.setdefault(arm, {"seeds": {}})["seeds"][str(seed)] = found
            say(
                f"{arm}, seed {seed}: {found['final']:.4f} after {found['seconds']} s, {found['upload_bytes']} bytes up"
            )
    if set(options.arms) != set(ARMS):
        report.line("arms", len(options.arms), "==", len(ARMS))
        return
    finals = {arm: [one["final"] for one in report.arms[arm]["seeds"].values()] for arm in ARMS}
    for arm in ARMS:
        report.arms[arm]["final_median"] = round(median(finals[arm]), 5)

    def ratio(arm: str, of: str) -> float:
        return round(median(a / b for a, b in zip(finals[arm], finals[of], strict=True)), 5)

    bytes_of = {arm: sum(one["upload_bytes"] for one in report.arms[arm]["seeds"].values()) for arm in ARMS}
    if options.chart and not report.quick:
        chart(options.chart, report.arms, rounds)
    if report.quick:  # so few rounds say nothing about quality
        report.line("loss_is_lower_than_of_guessing", max(map(max, finals.values())), "<", 5.545)
    else:
        report.line("rounds", rounds, ">=", 40)
        report.line("diloco_over_central", ratio("f32", "central"), "<=", WORST_RATIO)
        report.line("int4_over_f32", ratio("int4", "f32"), "<=", WORST_INT4)
        report.line("dropped_over_f32", ratio("dropped", "f32"), "<=", WORST_DROPPED)
    report.line("f32_bytes_over_int4", round(bytes_of["f32"] / bytes_of["int4"], 3), ">=", LEAST_SAVED)


async def tune(report: Report, kept: Kept, rounds: int, one: int | None) -> None:
    """As many tries for both: the best is what CENTRAL and DILOCO should say."""
    for arm, chosen in (("central", CENTRAL), ("f32", DILOCO)):
        found = report.arms.setdefault(arm, {})
        for rates in TUNED[arm] if one is None else TUNED[arm][one : one + 1]:
            found[" ".join(rates)] = (await kept.of(arm, report.seed, rounds, rates))["final"]
            say(f"{arm}, {' '.join(rates)}: {found[' '.join(rates)]:.4f}")
        best = min(found, key=found.__getitem__)
        report.line(f"best_of_{arm}_is_{best}", float(best == " ".join(chosen)), "==", 1)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=0, help=f"instead of {ROUNDS}")
    parser.add_argument("--kept", type=Path, default=Path("bench/results/quality_train.kept.json"), help="done arms")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS, help="some, to be kept for a later run of all")
    parser.add_argument("--chart", type=Path, default=None, help="an SVG of the curves")
    parser.add_argument("--tune", action="store_true", help="compare rates instead")
    parser.add_argument("--one", type=int, default=None, help="of the rates, the one of that number")


if __name__ == "__main__":
    run("quality_train", __doc__, measure, add=_options)
