"""Decoding around a ring over the internet, for `bench.decode`: machines of `bench.tools.wan`, Shard's
distances, the wire.

Stages compute for a stated time, so that the cores of one machine do not stand for six machines.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from statistics import median
from typing import Any, Self

from bench.decode.arms.sweep import best, simulated_per_s
from bench.decode.emulation.drivers import Arm
from bench.decode.emulation.virtual import turn_ms
from bench.report import Report
from bench.tools.lines import said, tell
from bench.tools.wan import SHARD_MS, Host, Wan
from processes.progress import say

ALPHAS, QUICK_ALPHAS = (0.5, 0.7, 0.8, 0.9, 0.95), (0.8,)
STAGES_MS, QUICK_STAGES_MS = (3.0, 10.0), (3.0,)
SPECULATING = ("synchronous", "overlapping", "ours")
PLAIN_TOKENS, QUICK_PLAIN_TOKENS, TOKENS, QUICK_TOKENS, ROUNDS = 25, 10, 250, 50, 2
SWEPT_TOKENS, QUICK_SWEPT_TOKENS = 600, 100
SIMULATED_TOKENS = 3_000
_PORT = 4_000
_OPEN_S = 0.3


class Ring:
    """Seven nodes with links to their neighbours; entered and left by `async with`."""

    def __init__(self, seed: int) -> None:
        self._stack = AsyncExitStack()
        self._wan = Wan({name: Host() for name, _ in SHARD_MS}, SHARD_MS, seed=seed)
        self._nodes: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.enter_context(self._wan)
            names = list(self._wan.hosts)
            for name in names:
                node = await self._wan.machine(name).start(
                    [sys.executable, "-m", "bench.decode.emulation.node"],
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**24,
                )  # fmt: skip
                stack.push_async_callback(_stopped, node)
                self._nodes.append(node)
            publics = [await said(node) for node in self._nodes]
            ring = [[public, f"{self._wan.ip[name]}:{_PORT}"] for public, name in zip(publics, names, strict=True)]
            for index, node in enumerate(self._nodes):
                await tell(node, {"index": index, "ring": ring})
            await self._all("listening")
            await self._tell_all("link")
            await self._all("linked")
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def run(self, arms: Sequence[Arm], stage_ms: float, *, batches: bool = False) -> list[dict[str, Any]]:
        """Sessions beside each other, of each that has `tokens` to make: `came_s` of every token, and how many of them
        `differ` from the decoder's. Raises OSError: a node broke off."""
        sessions = [{"tokens": 0, **arm, "job": secrets.token_hex(32)} for arm in arms]
        relayed = any(arm["arm"] == "relayed" for arm in arms)
        plan = {"sessions": sessions, "stage_ms": stage_ms, "relayed": relayed, "batches": batches}
        await self._tell_all(plan)
        await self._all("open")
        await asyncio.sleep(_OPEN_S)
        await self._tell_all("begin")
        found: Any = await said(self._nodes[0])
        await self._tell_all("end")
        await self._all("done")
        if not isinstance(found, list):
            raise OSError(f"the driver said {found!r}")
        return found

    async def _tell_all(self, what: Any) -> None:
        for node in self._nodes:
            await tell(node, what)

    async def _all(self, word: str) -> None:
        for node in self._nodes:
            if (heard := await said(node)) != word:
                raise OSError(f"a node said {heard!r} instead of {word!r}")


async def _stopped(node: asyncio.subprocess.Process) -> None:
    if node.returncode is None:
        node.kill()
    await node.wait()


def per_s(came_s: Sequence[float]) -> float:
    return (len(came_s) - 1) / (came_s[-1] - came_s[0])


async def measure_speculation(report: Report, ring: Ring) -> None:
    """Line 4: plain decoding beside what the ring takes, and the curves over acceptance."""
    quick = report.quick
    alphas, stages_ms = (QUICK_ALPHAS, QUICK_STAGES_MS) if quick else (ALPHAS, STAGES_MS)
    settled = {ms: _settled(report, ms, alphas) for ms in stages_ms}
    rates: dict[tuple[float, str], list[float]] = {}
    differ = 0
    for number in range(1 if quick else ROUNDS):
        for ms, arms in settled.items():
            for name, arm in arms.items():
                [found] = await ring.run([arm], ms)
                differ += found["differ"]
                rates.setdefault((ms, name), []).append(per_s(found["came_s"]))
                say(f"round {number}, {ms:g} ms, {name}: {rates[ms, name][-1]:.2f} tokens/s")
    report.arms["wan"] = {f"{ms:g}": _told(ms, arms, rates) for ms, arms in settled.items()}
    report.line("wan_tokens_that_differ", differ, "==", 0)
    _judge(report)


def _settled(report: Report, ms: float, alphas: Sequence[float]) -> dict[str, dict[str, Any]]:
    """The arms for a stage time, with the best settings that were found by simulation."""
    plain = QUICK_PLAIN_TOKENS if report.quick else PLAIN_TOKENS
    arms: dict[str, dict[str, Any]] = {
        name: {"arm": name, "seed": report.seed, "alpha": 0.5, "tokens": plain} for name in ("plain", "relayed")
    }
    swept = QUICK_SWEPT_TOKENS if report.quick else SWEPT_TOKENS
    for alpha in alphas:
        for name in SPECULATING:
            arm = best(name, ms, alpha, seed=report.seed + 1, tokens=swept, quick=report.quick)
            arm["seed"], arm["tokens"] = report.seed, QUICK_TOKENS if report.quick else TOKENS
            arm["simulated_per_s"] = round(simulated_per_s(arm, ms, swept if report.quick else SIMULATED_TOKENS), 2)
            say(f"{ms:g} ms, {alpha:g}: {name} {_setting(arm)} {arm['simulated_per_s']}/s simulated")
            arms[f"{name}.{alpha:g}"] = arm
    return arms


def _setting(arm: Arm) -> dict[str, Any]:
    return {name: arm[name] for name in ("k", "depth", "lookahead") if name in arm}


def _told(ms: float, arms: dict[str, dict[str, Any]], rates: dict[tuple[float, str], list[float]]) -> dict[str, Any]:
    said = {}
    for name, arm in arms.items():
        simulated = {"simulated_per_s": arm["simulated_per_s"]} if "simulated_per_s" in arm else {}
        said[name] = {"per_s": round(median(rates[ms, name]), 3), **simulated, **_setting(arm)}
    return {"turn_ms": round(turn_ms(ms), 2), "relayed_turn_ms": round(turn_ms(ms, relayed=True), 2), **said}


def _judge(report: Report) -> None:
    for ms, found in report.arms["wan"].items():
        rate = {name: arm["per_s"] for name, arm in found.items() if isinstance(arm, dict)}
        report.line(f"plain_of_a_turn_{ms}_ms", round(rate["plain"] * found["turn_ms"] / 1_000, 4), ">=", 0.95)
        for alpha in (0.7, 0.8, 0.9):
            if f"ours.{alpha:g}" in rate:
                ratio = rate[f"ours.{alpha:g}"] / rate[f"overlapping.{alpha:g}"]
                report.line(f"ours_over_shard_{ms}_ms_{alpha:g}", round(ratio, 3), ">=", 1.3)
    fast = report.arms["wan"].get("3", {})
    if "ours.0.95" in fast:
        ratio = fast["ours.0.95"]["per_s"] / fast["plain"]["per_s"]
        report.line("ours_over_direct_plain_3_ms_0.95", round(ratio, 2), ">=", 16)
