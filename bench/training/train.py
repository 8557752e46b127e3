"""What the market costs beside the bare loop: the same recipe, data, seeds and final weights, arm after arm, in turn.

Arms, each in a process of its own, warm, one thread a worker:

    bare      nodewire.training.engine.bare_loop: every round in one process
    plain     digits only: the same by torch.nn and torch.optim, as anybody writes it
    market    relay, Lightning network, providers and customer as processes; from the first request published to the
              final weights, with payments and audits beside the rounds or, as far as
              providers give credit, after them (`until_paid_s`)
    flower    digits only, and where --flower names a Python that has flwr[simulation]: Flower's simulation, without
              its start

The line is judged on the median market run over the median bare run. The bare loop has one core; the market has all of
this machine's, and `cpu_s` says what it took of them. Its weights must be the bare loop's, byte for byte.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import torch

from bench.report import Report, run
from nodewire.training.engine import state
from processes.progress import say
from processes.trainers import Trainers

CLIENTS = 4
DIGITS = """
name = "digits"
loss = "cross_entropy"
steps = 12
batch = 32
rounds = {rounds}
seed = {seed}
[family]
name = "mlp"
inputs = 64
hidden = [128]
classes = 10
[data]
layout = "arrays"
held_out = 5
[inner]
optimizer = "sgd"
lr = 0.1
momentum = 0.9
[audit]
segment = 1
"""
"""About one epoch of 1,438 rows at four clients a round; as Flower's arm."""
BYTES = """
name = "bytes"
loss = "next_token"
steps = 20
batch = 16
rounds = {rounds}
seed = {seed}
[family]
name = "decoder"
tokens = "byte"
vocabulary = 256
width = 96
layers = 4
heads = 4
kv_heads = 4
head_dim = 24
inner = 256
positions = 64
[data]
layout = "bytes"
window = 64
[inner]
optimizer = "adamw"
lr = 0.001
weight_decay = 0.1
clip = 1.0
schedule = "cosine"
warmup = 20
floor = 0.1
[outer]
method = "nesterov"
lr = 0.7
momentum = 0.9
[compression]
method = "int8"
[audit]
segment = 2
"""
"""0.47 million numbers, H = 20."""
ARM_S = 600.0


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=5, help="of each arm, in turn; of the bytes at most three")
    parser.add_argument("--only", choices=("digits", "bytes"), help="one of the two models")
    parser.add_argument("--providers", type=int, default=CLIENTS, help="their workers add up to the clients")
    parser.add_argument("--flower", help="a Python that has flwr[simulation], scikit-learn and torch")
    parser.add_argument("--credit", type=int, default=1_000_000, help="msat: what providers let a customer owe")
    parser.add_argument("--train", action="append", default=[], metavar="LINE", help="a further line of [train]")


async def measure(report: Report, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        market = Trainers(
            folder / "market",
            providers=options.providers,
            concurrency=-(-CLIENTS // options.providers),
            train_lines=[f"credit_msat = {options.credit}", *options.train],
        )
        async with market:
            bench = _Bench(report, options, market, folder)
            if options.only != "bytes":
                await bench.digits()
            if options.only != "digits":
                await bench.bytes()


class _Bench:
    def __init__(self, report: Report, options: argparse.Namespace, market: Trainers, folder: Path) -> None:
        self._report, self._options, self._market, self._folder = report, options, market, folder
        self._customers = 0

    async def digits(self) -> None:
        from sklearn.datasets import load_digits

        data = self._folder / "digits"
        data.mkdir()
        digits = load_digits()
        rows = {"x": torch.tensor(digits.data / 16.0, dtype=torch.float32), "y": torch.tensor(digits.target).long()}
        (data / "digits.safetensors").write_bytes(state.pack(rows))
        rounds = 5 if self._options.quick else 20
        recipe = self._recipe("digits", DIGITS.format(rounds=rounds, seed=self._options.seed))
        await self._compare("digits", recipe, data, 2 if self._options.quick else self._options.runs, 1.5)

    async def bytes(self) -> None:
        data = self._folder / "text"
        data.mkdir()
        (data / "stdlib.txt").write_bytes(_sources())
        recipe = self._recipe("bytes", BYTES.format(rounds=2 if self._options.quick else 10, seed=self._options.seed))
        await self._compare("bytes", recipe, data, 1 if self._options.quick else min(3, self._options.runs), 1.1)

    def _recipe(self, name: str, text: str) -> Path:
        path = self._folder / f"{name}.toml"
        path.write_text(text)
        return path

    async def _compare(self, name: str, recipe: Path, data: Path, runs: int, most: float) -> None:
        arms: dict[str, list[dict[str, Any]]] = {}
        for turn in range(runs):
            for arm in ("bare", "market", *(("plain", "flower") if name == "digits" else ())):
                if arm == "flower" and not self._options.flower:
                    continue
                ran = await self._run(arm, recipe, data)
                arms.setdefault(arm, []).append(ran)
                say(f"{name}, {turn + 1} of {runs}, {arm}: {ran['seconds']:.3f} s")
        median = {arm: statistics.median(ran["seconds"] for ran in said) for arm, said in arms.items()}
        self._report.arms[name] = {
            arm: {"median_s": round(median[arm], 4), **_pressed(said)} for arm, said in arms.items()
        }
        self._report.arms[name]["over_bare"] = {arm: round(median[arm] / median["bare"], 2) for arm in arms}
        if "plain" in arms:
            self._report.arms[name]["market_over_plain"] = round(median["market"] / median["plain"], 2)
        expected = {ran["weights"] for ran in arms["bare"]}
        other = sum({ran["weights"]} != expected for ran in arms["market"])
        self._report.line(f"{name}: runs with other weights than the bare loop's", other, "==", 0)
        self._report.line(f"{name}: market over bare loop", round(median["market"] / median["bare"], 3), "<=", most)

    async def _run(self, arm: str, recipe: Path, data: Path) -> dict[str, Any]:
        if arm == "flower":
            rounds = 5 if self._options.quick else 20
            script = str(Path(__file__).with_name("flower_digits.py"))
            return await _json(self._options.flower, script, str(rounds), str(CLIENTS))
        said: dict[str, Any] = {"recipe": str(recipe), "data": str(data), "k": CLIENTS}
        if arm == "market":
            self._customers += 1
            config = await self._market.customer_config(f"customer-{self._customers}")
            with config.open("a") as file:
                file.write(f'[worker]\nmemory = "600MB"\nthreads = {os.cpu_count()}\n')
            said |= {"config": str(config), "daemons": self._market.pids()}
        return await _json(sys.executable, "-m", "bench.training.train_arms", arm, json.dumps(said))


def _sources() -> bytes:
    """The text of Python's standard library, its packages left out."""
    return b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))


def _pressed(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Every figure of every run, by its name; one where all are alike."""
    listed = {name: [ran.get(name) for ran in runs] for name in runs[0]}
    rounded = {n: [round(v, 4) if isinstance(v, float) else v for v in values] for n, values in listed.items()}
    return {n: v[0] if all(one == v[0] for one in v) else v for n, v in rounded.items()}


async def _json(*command: str) -> dict[str, Any]:
    """The JSON of a program's last line that has any."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        stdout, stderr = await asyncio.wait_for(process.communicate(), ARM_S)
    except BaseException:
        process.kill()
        await process.wait()
        raise
    lines = [line for line in stdout.decode().splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        raise RuntimeError(f"{' '.join(command[:4])}: {(stderr or stdout).decode()[-1500:]}")
    return dict(json.loads(lines[-1]))


if __name__ == "__main__":
    run("train", __doc__, measure, add=add)
