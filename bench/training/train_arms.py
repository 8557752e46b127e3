"""One run of one arm of bench.training.train, in a process of its own: `python -m bench.training.train_arms ARM
OPTIONS` (as JSON).

    bare     nodewire's own loop: every round in this process, on one thread
    plain    the same model and data by torch.nn and torch.optim, as anybody writes it
    market   a customer with its own worker, from the first request published to the final weights

What is not training is not timed: imports, the split of the data, and the first use of every operation.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nodewire.training.protocol.recipe import Recipe


def bare(recipe: Recipe, data: Path, k: int) -> dict[str, Any]:
    import torch

    from nodewire.training.engine import bare_loop as loop
    from nodewire.training.engine import sample_files, state

    torch.set_num_threads(1)
    dataset = sample_files.read(recipe, data)
    loop.run(recipe, dataset, k, rounds=1)
    begun_s, cpu_s = time.monotonic(), time.process_time()
    loop.run(recipe, dataset, k, rounds=0)
    split_s, split_cpu_s = time.monotonic() - begun_s, time.process_time() - cpu_s
    begun_s, cpu_s = time.monotonic(), time.process_time()
    theta, curve = loop.run(recipe, dataset, k)
    return {
        "seconds": time.monotonic() - begun_s - split_s,
        "cpu_s": time.process_time() - cpu_s - split_cpu_s,
        "loss": curve[-1].held_out,
        "weights": hashlib.sha256(state.pack(theta)).hexdigest(),
        "accuracy": accuracy(recipe, dataset, k, theta),
    }


def accuracy(recipe: Recipe, dataset: Mapping[str, Any], k: int, theta: Mapping[str, Any]) -> float | None:
    """Of a classifier, on what is held out."""
    from nodewire.training.engine import data
    from nodewire.training.engine.inner_loop import Trainer

    if recipe.loss != "cross_entropy":
        return None
    _, held_out = data.split(dataset, k, recipe)
    rows = data.samples(held_out, recipe, 2**16)
    return float((Trainer(recipe).outputs(theta, rows).argmax(1) == rows[1]).float().mean())


def plain(recipe: Recipe, data: Path, k: int) -> dict[str, Any]:
    """Digits only: FedAvg of an MLP by SGD with momentum."""
    import torch
    from torch import nn
    from torch.nn import functional

    from nodewire.training.engine import data as dealing
    from nodewire.training.engine import sample_files

    torch.set_num_threads(1)
    shards, held_out = dealing.split(sample_files.read(recipe, data), k, recipe)

    def run(rounds: int) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        theta = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        for round_ in range(rounds):
            results = []
            for index, shard in enumerate(shards):
                x, y = shard.tensors["x"], shard.tensors["y"]
                model.load_state_dict(theta)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
                order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1_000 * round_ + index))
                for step in range(recipe.steps):
                    batch = order[(step * 32) % len(x) :][:32]
                    loss = functional.cross_entropy(model(x[batch]), y[batch])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                results.append(({name: tensor.clone() for name, tensor in model.state_dict().items()}, len(x)))
            total = sum(rows for _, rows in results)
            theta = {name: sum(state[name] * (rows / total) for state, rows in results) for name in theta}
        model.load_state_dict(theta)
        return model

    run(1)
    begun_s, cpu_s = time.monotonic(), time.process_time()
    model = run(recipe.rounds)
    seconds, cpu_s = time.monotonic() - begun_s, time.process_time() - cpu_s
    with torch.no_grad():
        right = model(held_out.tensors["x"]).argmax(1) == held_out.tensors["y"]
    return {"seconds": seconds, "cpu_s": cpu_s, "accuracy": float(right.float().mean())}


def market(recipe: Recipe, data: Path, k: int, config: Path, daemons: Sequence[int]) -> dict[str, Any]:
    """Also the CPU seconds of the `daemons` and all that they have started, and of this customer with its worker."""
    import uvloop

    from nodewire.config import CustomerConfig
    from nodewire.training.customer.api import train
    from nodewire.training.customer.machine import events as happened
    from nodewire.training.customer.machine.state import State
    from nodewire.training.customer.market.context import TrainingOrder

    times: dict[str, float] = {}
    rounds: list[float] = []

    def on_change(state: State, event: object, provider: str) -> None:
        if isinstance(event, happened.RequestPublication) and not times:
            times["cpu"], times["worker"] = _cpu_s(daemons), _cpu_s([os.getpid()])
            times["begun"] = time.monotonic()
        if isinstance(event, happened.StepCompletion):
            rounds.append(time.monotonic() - times["begun"])
            if state.is_trained:
                times["cpu"], times["worker"] = (
                    _cpu_s(daemons) - times["cpu"],
                    _cpu_s([os.getpid()]) - times["worker"],
                )

    async def run() -> Any:
        order = TrainingOrder(shards=k, budget_msat=10**9)
        return await train(CustomerConfig.load(config), recipe, data, order, on_change=on_change)

    done = uvloop.run(run())
    between = [after - before for before, after in zip([0.0, *rounds], rounds, strict=False)]
    return {
        "seconds": rounds[-1],
        "until_paid_s": time.monotonic() - times["begun"],
        "cpu_s": times["cpu"] + times["worker"],
        "customer_cpu_s": times["worker"],
        "first_round_ms": round(between[0] * 1000, 1),
        "round_ms": round(sorted(between)[len(between) // 2] * 1000, 1),
        "loss": done.state.losses[-1] / 1e6,
        "weights": hashlib.sha256(done.weights).hexdigest(),
        "failures": [reason for _, reason in done.state.failures],
        "paid_msat": done.paid_msat,
    }


def _cpu_s(roots: Sequence[int]) -> float:
    """CPU seconds of processes and all that they have started and that still runs."""
    parents, used = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            parents[int(folder.name)] = int(fields[1])
            used[int(folder.name)] = int(fields[11]) + int(fields[12])
    total = 0
    for pid, ticks in used.items():
        at: int | None = pid
        while at and at not in roots:
            at = parents.get(at)
        total += ticks if at else 0
    return total / os.sysconf("SC_CLK_TCK")


def main() -> None:
    arm, said = sys.argv[1], json.loads(sys.argv[2])
    recipe, data, k = Recipe.from_toml(Path(said["recipe"]).read_text()), Path(said["data"]), int(said["k"])
    match arm:
        case "bare":
            result = bare(recipe, data, k)
        case "plain":
            result = plain(recipe, data, k)
        case "market":
            result = market(recipe, data, k, Path(said["config"]), said["daemons"])
    result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(result))


if __name__ == "__main__":
    main()
