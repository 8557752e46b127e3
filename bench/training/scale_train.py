"""What a training costs its customer as providers grow: `python -m bench.training.scale_train [--json] [--quick]
[--seed N]`.

4, 16, 64 and 256 providers stand in one process (their daemons' halves, wallets and books are real, their workers are
in place), a relay and a Lightning network in the same; the customer is a process of its own. A shard each, a model of
650 numbers and one step a round, so that nothing but the market is measured.

Figures, by the number of providers:
- startup_s: until every provider has announced itself.
- events, bytes: what the relay took for a provider and a round, tickets included. Linear in all: `MOST_EVENTS` and
  `MOST_EVENT_BYTES` hold for every number of providers.
- memory_kb: by how much the customer's process grew over one with 4 providers; its coordinator is in it and keeps the
  results of two rounds. At most `MOST_KB` for a provider, and `STATES` times the states' bytes.
- validation: the share of the customer's processor time in judging results and computing segments again.
- round_s: the median of rounds after the first; the first has deposits.

And the judging of 256 results of a larger model (`LARGE` numbers) alone: seconds, and of these the pairwise cosines.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bench.report import Report, run
from processes.market import ROOT
from processes.progress import say

SIZES, QUICK_SIZES = (4, 16, 64, 256), (2, 8)
ROUNDS = 3
MOST_EVENTS, MOST_EVENT_BYTES = 9.0, 24_000.0
"""Of a provider and round: a share of the request, a ticket or more, feedback, result, audit and answer, receipts;
3.6 kB of it are the result, which is small enough to stand in its event."""
MOST_KB, STATES = 400.0, 16
MOST_VALIDATION = 0.5
MOST_ROUND_S_A_PROVIDER = 0.25
LARGE, RESULTS = 100_000, 256
MOST_JUDGED_S, MOST_COSINES_S = 60.0, 15.0
RECIPE = """
name = "scale"
loss = "cross_entropy"
steps = 1
batch = 4
rounds = {rounds}
seed = {seed}
deadline = 600
[family]
name = "linear"
inputs = 64
classes = 10
[data]
layout = "arrays"
[inner]
optimizer = "sgd"
lr = 0.1
[validation]
samples = 64
norm_low = 0.0
norm_high = 10000.0
"""
SHARD_ROWS = 8


async def providers(size: int, seed: int, folder: Path) -> dict[str, Any]:
    """One training with so many of them."""
    from nodewire.nostr.nips.nip01 import Filter
    from nodewire.nostr.pool import Pool
    from nodewire.training.engine import state
    from tests.kinds.digits import dataset
    from tests.training import small_market

    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    counted: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    async with small_market.opened(folder) as market, AsyncExitStack() as stack:
        (market.data / "digits.safetensors").write_bytes(state.pack(dataset(SHARD_ROWS * size * 10 // 9 + 20)))
        (folder / "recipe.toml").write_text(RECIPE.format(rounds=ROUNDS, seed=seed))
        pool = await stack.enter_async_context(Pool([market.relay]))

        announced = asyncio.Event()

        async def count() -> None:
            async for event in pool.subscribe([Filter()]):
                counted[event.kind] += 1
                sizes[event.kind] += len(event.to_json())
                if counted[31990] == size:
                    announced.set()

        counting = asyncio.create_task(count())
        stack.callback(counting.cancel)
        began = time.monotonic()
        for number in range(size):
            await stack.enter_async_context(small_market.provider(market, f"p{number}", families=("linear",)))
        await announced.wait()
        startup_s = time.monotonic() - began
        ads = sum(counted.values()), sum(sizes.values())
        said = await _customer(folder, market, size)
        await asyncio.sleep(0.5)  # receipts
        events, bytes_ = sum(counted.values()) - ads[0], sum(sizes.values()) - ads[1]
        blobs = sum(file.stat().st_size for file in (folder / "blobs").rglob("*") if file.is_file())
    each = size * ROUNDS
    return {
        "startup_s": round(startup_s, 2),
        "events": round(events / each, 2),
        "bytes": round(bytes_ / each),
        "blob_bytes": round(blobs / each),
        "kinds": {str(kind): round(count / each, 2) for kind, count in sorted(counted.items()) if kind != 31990},
        **said,
    }


async def _customer(folder: Path, market: Any, size: int) -> dict[str, Any]:
    from nodewire.errors import NodewireError

    wallet = await market.wallet("customer", 10**9)  # opened here, used there
    await wallet.close()
    said = {
        "folder": str(folder),
        "relay": market.relay,
        "blossom": market.blossom,
        "simnet": market.simnet,
        "size": size,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.training.scale_train", "--customer", json.dumps(said),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    stdout, stderr = await process.communicate()
    if process.returncode:
        raise NodewireError("customer", stderr.decode()[-600:])
    return dict(json.loads(stdout))


def buy(said: dict[str, Any]) -> dict[str, Any]:
    """The customer's process: buys the training and tells what it took."""
    from nodewire.training.customer.machine.events import StepCompletion
    from nodewire.training.customer.market.context import TrainingOrder
    from nodewire.training.engine import bare_loop, state
    from nodewire.training.engine.actors import coordinator
    from nodewire.training.protocol.recipe import Recipe
    from tests.training import small_market

    folder = Path(said["folder"])
    market = small_market.Market.__new__(small_market.Market)  # its folder stands already
    market.folder, market.data, market.ports = folder, folder / "data", {}
    market.relay, market.blossom, market.simnet = said["relay"], said["blossom"], said["simnet"]
    recipe = Recipe.from_toml((folder / "recipe.toml").read_text())
    took: Counter[str] = Counter()
    receive = coordinator.CoordinatorActor.receive

    def timed(self: Any, session: str, frame: Any) -> Any:
        began = time.process_time()
        try:
            return receive(self, session, frame)
        finally:
            took[frame.edge] += time.process_time() - began

    coordinator.CoordinatorActor.receive = timed  # type: ignore[method-assign]
    steps: list[float] = []

    def on_change(_: Any, event: Any, __: str) -> None:
        if isinstance(event, StepCompletion):
            steps.append(time.monotonic())

    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, began_cpu = time.monotonic(), time.process_time()
    done, weights = asyncio.run(
        small_market.train(market, "customer", recipe, TrainingOrder(said["size"], 10**9), on_change=on_change)
    )
    cpu_s = time.process_time() - began_cpu
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    from nodewire.training.engine import sample_files

    expected, _ = bare_loop.run(recipe, sample_files.read(recipe, folder / "data"), said["size"])
    validation = sum(took[edge] for edge in ("judge", "draw", "shown", "audit"))
    return {
        "customer_grown_kb": grown_kb,
        "customer_cpu_s": round(cpu_s, 2),
        "validation": round(validation / cpu_s, 3),
        "coordinator_s": {edge: round(seconds, 3) for edge, seconds in took.most_common()},
        "first_round_s": round(steps[0] - began, 2),
        "round_s": round(median(b - a for a, b in itertools.pairwise(steps)), 2),
        "identical": weights == state.pack(expected),
        "failures": len(done.failures),
        "state_bytes": recipe.state_bytes(),
    }


def judged(results: int, numbers: int, seed: int) -> dict[str, float]:
    """Seconds of processor time to judge so many results of a model of so many numbers, beside as many of the round
    before; of these the cosines; and the tracked memory over the results themselves, in their sizes."""
    import torch

    from nodewire.training.engine import validation as validate
    from nodewire.training.protocol.recipe import Recipe

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    recipe = Recipe.from_toml(RECIPE.format(rounds=2, seed=seed).replace("classes = 10", f"classes = {numbers // 65}"))
    shapes = recipe.shapes()

    def state_(scale: float) -> dict[str, Any]:
        return {name: torch.randn(shape, generator=generator) * scale for name, shape in shapes.items()}

    theta = state_(1.0)
    deltas = [state_(0.01) for _ in range(results)]
    earlier = [state_(0.01) for _ in range(results)]

    def losses(theta_: Any) -> torch.Tensor:
        return theta_["bias"][:4].double() / 1e6

    submissions = [validate.Submission(i, 1, 4, delta, losses) for i, delta in enumerate(deltas)]
    began_kb, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    validate.cosines(dict(enumerate(deltas)), earlier)
    cosines_s = time.process_time() - began
    began = time.process_time()
    found = validate.judge(recipe, theta, submissions, losses, earlier=earlier)
    judged_s = time.process_time() - began
    assert len(found) == results
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began_kb) * 1024
    return {
        "results": results,
        "numbers": recipe.trained(),
        "judged_s": round(judged_s, 2),
        "cosines_s": round(cosines_s, 2),
        "grown_states": round(grown / recipe.state_bytes(), 1),
    }


async def measure(report: Report, options: argparse.Namespace) -> None:
    sizes = options.sizes or (QUICK_SIZES if report.quick else SIZES)
    folder = Path(tempfile.mkdtemp(prefix="nodewire-scale-train-"))
    try:
        for size in sizes:
            (folder / str(size)).mkdir()
            report.arms[str(size)] = found = await providers(size, report.seed, folder / str(size))
            say(f"{size} providers: {json.dumps(found)}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    arms = [report.arms[str(size)] for size in sizes]
    report.arms["judging"] = alone = await asyncio.to_thread(
        judged, 32 if report.quick else RESULTS, LARGE // (10 if report.quick else 1), report.seed
    )
    least, most = arms[0], arms[-1]
    more = sizes[-1] - sizes[0]
    a_provider_kb = (most["customer_grown_kb"] - least["customer_grown_kb"]) / more
    bound_kb = MOST_KB + STATES * most["state_bytes"] / 1024
    report.line("other_weights_than_the_bare_loops", sum(not arm["identical"] for arm in arms), "==", 0)
    report.line("events_of_a_provider_and_round", max(arm["events"] for arm in arms), "<=", MOST_EVENTS)
    report.line("event_bytes_of_a_provider_and_round", max(arm["bytes"] for arm in arms), "<=", MOST_EVENT_BYTES)
    report.line("customer_kb_a_provider", round(a_provider_kb, 1), "<=", round(bound_kb, 1))
    report.line("validation_share", max(arm["validation"] for arm in arms), "<=", MOST_VALIDATION)
    slow = max(arm["round_s"] / size for arm, size in zip(arms, sizes, strict=True) if size >= 8)
    report.line("round_s_a_provider", round(slow, 3), "<=", MOST_ROUND_S_A_PROVIDER)
    report.line("judged_s", alone["judged_s"], "<=", MOST_JUDGED_S)
    report.line("cosines_s", alone["cosines_s"], "<=", MOST_COSINES_S)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", nargs="+", type=int, default=[], help="numbers of providers, ascending")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--customer"]:
        print(json.dumps(buy(json.loads(sys.argv[2]))))
        sys.exit()
    run("scale_train", __doc__, measure, add=_options)
