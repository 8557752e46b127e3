"""DAGs bought on a market of four providers: `python -m bench.market.market_dag [--json] [--quick]`.

CLIP (a small one with random weights), all-MiniLM-L6-v2 and a small mixture of experts are registered, cut, and served
by four provider processes, each piece by two of them; a market is made of public commands and configuration files only.
What comes is held against the whole model in one process. CLIP's branches are timed where they are computed: workers
write down when each of their calls began and ended (`bench.market.trace_provider`), by one clock. Then four customers
buy 200 calls of all three models or more, while a provider joins, another is stopped and a third is killed.

Acceptance: every output is the whole model's; where a call's branches were at different providers they overlapped in
time; of the calls none is lost and none is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.market.dag_models import MODELS, Whole
from bench.market.trace_worker import MARK
from bench.report import Report, percentile, run, spread
from bench.verification.honest import minilm
from nodewire import Customer, NodewireError
from nodewire.graph.reference import embed
from nodewire.protocol.model.manifest import CUSTOMER, Manifest
from nodewire.protocol.model.signature import Signature
from processes.market import Market, Model, ProviderSetup, Stock
from processes.progress import say

TRACED = (sys.executable, "-m", "bench.market.trace_provider")
PROVIDERS, CUSTOMERS, HOLDERS = 4, 4, 2
CALLS, QUICK_CALLS = 200, 24
TIMED, QUICK_TIMED = 20, 5
VARIANTS = 3
"""Inputs of each model that calls take in turn."""
MINILM, SENTENCES = "minilm", (["a cat", "a kitten on a mat"], ["rain"], ["the sun", "a tree", "a dog ran"])
MINILM_TARGET, MINILM_WITHIN = "30MB", 1e-5
LEAST_OVERLAPPING = 0.8
"""Of the calls whose branches were at different providers."""


@dataclass
class Sold:
    """One model on the market: its address and what comes of each of its variants."""

    name: str
    address: str
    within: float
    manifest: Manifest | None = None
    calls: list[Any] = field(default_factory=list)
    expected: list[dict[str, np.ndarray]] = field(default_factory=list)

    async def buy(self, customer: Customer, variant: int) -> float:
        """The largest difference of any output from the whole model's, where that is largest; inf if one is missing."""
        if self.manifest is None:
            got = {"vectors": await customer.embed(self.address, self.calls[variant])}
        else:
            got = await customer.run(self.address, self.calls[variant])
        expected = self.expected[variant]
        if got.keys() != expected.keys() or any(got[name].shape != one.shape for name, one in expected.items()):
            return float("inf")
        return max(_difference(got[name], one) for name, one in expected.items())


def _difference(got: np.ndarray, wanted: np.ndarray) -> float:
    """Beside the largest number of the output."""
    return float(np.abs(got - wanted).max(initial=0.0) / max(1.0, float(np.abs(wanted).max(initial=0.0))))


async def measure(report: Report, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    calls = options.calls or (QUICK_CALLS if report.quick else CALLS)
    with tempfile.TemporaryDirectory() as scratch:
        wholes = {name: make(Path(scratch, name)) for name, (make, _, _) in MODELS.items()}
        models = [Model(Path(scratch, name), of[1], name, as_tensors=True) for name, of in MODELS.items()]
        models.append(Model(minilm(), MINILM_TARGET, MINILM))
        async with (
            Market(
                Path(scratch, "market"),
                providers=PROVIDERS,
                stock=Stock(models=models, holders=HOLDERS, slots=8),
                setup=ProviderSetup(worker_memory="500MB"),
                program=TRACED,
            ) as market,
            AsyncExitStack() as stack,
        ):
            customers = [await stack.enter_async_context(market.customer(f"ada-{k}")) for k in range(CUSTOMERS)]
            sold = [await _sold(customers[0], market, name, wholes.get(name)) for name in market.models]
            await _equal(report, market, customers[0], sold)
            await _overlap(report, market, customers[0], sold[0], QUICK_TIMED if report.quick else TIMED)
            await _churn(report, market, customers, sold, calls)


async def _sold(customer: Customer, market: Market, name: str, whole: Whole | None) -> Sold:
    address = market.models[name]["address"]
    if whole is None:
        made = Sold(name, address, MINILM_WITHIN, None, list(SENTENCES))
        made.expected = [{"vectors": embed(minilm(), texts).numpy()} for texts in SENTENCES]
        return made
    manifest = await customer.session.market.manifest(address)
    signature = Signature.from_manifest(manifest)
    inputs = {one: (tensor.dtype, tensor.shape) for one, tensor in signature.inputs.items()}
    made = Sold(name, address, MODELS[name][2], manifest)
    made.calls = [whole.call(inputs, seed) for seed in range(VARIANTS)]
    made.expected = [whole.outputs(call, signature.outputs) for call in made.calls]
    return made


async def _equal(report: Report, market: Market, customer: Customer, sold: Sequence[Sold]) -> None:
    for one in sold:
        found = [await one.buy(customer, variant) for variant in range(VARIANTS)]
        used = set(customer.last["providers"])
        report.arms[one.name] = {
            "tasks": len(market.models[one.name]["tasks"]),
            "providers": len(used),
            "largest_difference": max(found),
            "first_output_ms": customer.last["first_token_ms"],
        }
        say(f"{one.name}: {report.arms[one.name]}")
        report.line(f"{one.name}: difference from the whole model", max(found), "<=", one.within)


def branches(manifest: Manifest) -> dict[str, frozenset[str]]:
    """By task, the model's inputs that it depends on."""
    found: dict[str, frozenset[str]] = {}
    for task in manifest.tasks:
        names: set[str] = set()
        for edge in manifest.inputs(task.name):
            names |= {t.name for t in edge.tensors} if edge.source == CUSTOMER else found[edge.source]
        found[task.name] = frozenset(names)
    return found


async def _overlap(report: Report, market: Market, customer: Customer, clip: Sold, times: int) -> None:
    """Whether tasks of images and tasks of texts were computed at the same time."""
    assert clip.manifest is not None
    depends = branches(clip.manifest)
    images = {task for task, names in depends.items() if names == {"pixel_values"}}
    texts = {task for task, names in depends.items() if names and "pixel_values" not in names}
    windows = []
    for number in range(times):
        began_ns = time.monotonic_ns()
        await clip.buy(customer, number % VARIANTS)
        place = {one["task"]: one["provider"] for one in customer.last["tasks"]}
        windows.append((began_ns, time.monotonic_ns(), place))
    await asyncio.sleep(1.0)  # what workers say passes their daemons' logs
    traces = _traces(market, clip.manifest)
    apart = together = 0
    shown: list[dict[str, Any]] = []
    overlaps_ms: list[float] = []
    for began_ns, ended_ns, place in windows:
        if not any(place[a] != place[b] for a in images for b in texts):
            continue
        apart += 1
        inside = [one for one in traces if began_ns <= one["began_ns"] and one["ended_ns"] <= ended_ns]
        both = [
            min(a["ended_ns"], b["ended_ns"]) - max(a["began_ns"], b["began_ns"])
            for a in inside if a["task"] in images
            for b in inside if b["task"] in texts and b["provider"] != a["provider"]
        ]  # fmt: skip
        overlap_ms = sum(one for one in both if one > 0) / 1e6
        together += overlap_ms > 0
        overlaps_ms.append(overlap_ms)
        shown = [
            {
                "task": one["task"],
                "provider": one["provider"],
                "began_ms": round((one["began_ns"] - began_ns) / 1e6, 3),
                "ended_ms": round((one["ended_ns"] - began_ns) / 1e6, 3),
            }
            for one in sorted(inside, key=lambda one: one["began_ns"])
        ]
    report.arms["overlap"] = {
        "image_tasks": sorted(images),
        "text_tasks": sorted(texts),
        "calls": times,
        "calls_at_different_providers": apart,
        "overlapping": together,
        "overlap_ms": spread(overlaps_ms),
        "trace_of_the_last": shown,
    }
    say(f"branches overlapped in {together} of {apart} calls that had them at different providers")
    report.line("branches overlapping in time", together / apart if apart else None, ">=", LEAST_OVERLAPPING)


def _traces(market: Market, manifest: Manifest) -> list[dict[str, Any]]:
    """Every call of the model's tasks, by the providers' logs."""
    tasks = {task.program.sha256: task.name for task in manifest.tasks}
    found = []
    for name in market.providers:
        for line in market.log(name).splitlines():
            _, mark, said = line.partition(MARK)
            if mark and (one := json.loads(said))["program"] in tasks:
                found.append({**one, "task": tasks[one["program"]], "provider": name})
    return found


class Calls:
    """Calls of all models in turn: at least `least`, and until `over` is set. What came of them so far."""

    def __init__(self, sold: Sequence[Sold], least: int) -> None:
        self.least, self.over = least, asyncio.Event()
        self.done = 0
        self.again = 0
        """Those that were bought more than once."""
        self.lost: list[str] = []
        self.differences: list[tuple[float, float]] = []
        """From the whole model's outputs, and how large that may be."""
        self.seconds: list[float] = []
        self._sold, self._numbers, self._moved = sold, itertools.count(), asyncio.Condition()

    async def buy(self, customer: Customer) -> None:
        """Buy one call after another."""
        for number in self._numbers:
            if number >= self.least and self.over.is_set():
                return
            one = self._sold[number % len(self._sold)]
            began_s = time.monotonic()
            try:
                self.differences.append((await one.buy(customer, number % VARIANTS), one.within))
                self.again += len(customer.last.get("requests", ())) > 1
            except NodewireError as error:
                self.lost.append(f"{one.name}: {error.code} {error}"[:200])
                say(f"lost: {self.lost[-1]}")
            self.seconds.append(time.monotonic() - began_s)
            async with self._moved:
                self.done += 1
                self._moved.notify_all()

    async def reached(self, count: int) -> None:
        """Wait until so many are done."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.done >= count)


async def _come_and_go(market: Market, calls: Calls) -> list[str]:
    """A provider joins, another is stopped and a third is killed, at fixed numbers of calls; what happened when."""
    pieces = [(name, task["name"]) for name, said in market.models.items() for task in said["tasks"]]
    await calls.reached(calls.least // 8)
    await market.add_provider(pieces, name="joiner", command=TRACED)
    joined = (await market.start_provider("joiner")).public
    await market.until(lambda snapshot: snapshot.node(joined) is not None, timeout_s=60)
    told = [f"joined at {calls.done}"]
    await calls.reached(calls.least // 2)
    await market.remove_provider("provider-1")
    told.append(f"stopped at {calls.done}")
    await calls.reached(calls.least * 3 // 4)
    await market.kill_provider("provider-2")
    told.append(f"killed at {calls.done}")
    await calls.reached(calls.done + calls.least // 8)
    calls.over.set()
    return told


async def _churn(
    report: Report, market: Market, customers: Sequence[Customer], sold: Sequence[Sold], least: int
) -> None:
    """Calls of all models while providers come and go: as many as were asked for, and until all have come and gone."""
    calls = Calls(sold, least)
    began_s = time.monotonic()
    *_, told = await asyncio.gather(*map(calls.buy, customers), _come_and_go(market, calls))
    used = {p for customer in customers for p in customer.last["providers"]}
    wrong = sum(difference > within for difference, within in calls.differences)
    report.arms["churn"] = {
        "calls": calls.done,
        "lost": calls.lost,
        "wrong": wrong,
        "bought_again": calls.again,
        "events": told,
        "joiner_used_at_the_end": market.providers["joiner"].public in used,
        "call_s": {**spread(calls.seconds), "p99": percentile(calls.seconds, 99)},
        "seconds": round(time.monotonic() - began_s, 1),
    }
    lost = len(calls.lost)
    say(f"{calls.done} calls: {lost} lost, {wrong} wrong, {calls.again} bought again; {', '.join(told)}")
    report.line("calls that were lost", lost, "==", 0)
    report.line("calls that were wrong", wrong, "==", 0)
    report.line("calls while providers came and went", len(calls.differences), ">=", least)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calls", type=int, default=0, help=f"while providers come and go (default: {CALLS})")


if __name__ == "__main__":
    run("market_dag", __doc__, measure, add=_options)
