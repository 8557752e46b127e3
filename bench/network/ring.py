"""A turn around a ring over the internet: `python -m bench.network.ring [--json] [--quick]`.

Seven machines (`bench.tools.wan`), as far from each other as Shard's were, each with a node of the wire; 64 KiB go
around, from node to node, as a decoder's activations do. The ideal is what light and routers take: half a round trip an
edge, 145.75 ms a turn. With uplinks of 20 Mbit/s every edge takes 64 KiB / 20 Mbit/s more.

Arms, interleaved: `wire` is the wire as it is; `control` is the same without heartbeats and warm-up, on CUBIC, whose
congestion window collapses between two turns. Of each arm: the first turn of a job, the next ones with one in flight,
and the rate of turns with four in flight. After every fifth turn nothing goes around for a second: a job is not always
busy. Links are a second old when the job is opened, and its first turn begins half a second later.
Where the machine can have no network namespaces it is skipped, and says why.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from statistics import median
from typing import Any

from bench.report import Report, percentile, run
from bench.tools.lines import said, tell
from bench.tools.wan import SHARD_MS, Host, Wan, unavailable
from processes.progress import say

FRAME_BYTES = 65_536
UPLINK_MBIT = 20.0
IDEAL_MS = sum(SHARD_MS.values()) / 2
SERIAL_MS = len(SHARD_MS) * FRAME_BYTES * 8 / UPLINK_MBIT / 1_000
TURNS, QUICK_TURNS, ROUNDS = 30, 5, 3
DEPTH, DEEP_TURNS = 4, 100
_PORT = 4_000
_NODE = ["-m", "bench.network.ring_node"]


async def measure(report: Report, options: argparse.Namespace) -> None:
    if (why := unavailable()) is not None:
        report.skip(why)
        return
    turns, rounds = (QUICK_TURNS, 1) if report.quick else (TURNS, ROUNDS)
    arms: dict[str, list[dict[str, Any]]] = {"wire": [], "control": [], "wire_20_mbit": []}
    for number in range(rounds):
        for arm, found in arms.items():
            host = Host(up_mbit=UPLINK_MBIT if arm == "wire_20_mbit" else 0.0)
            with Wan({name: host for name, _ in SHARD_MS}, SHARD_MS, seed=report.seed + number) as wan:
                found.append(await _turned(wan, is_hot=arm != "control", turns=turns))
            say(f"{arm}: first {found[-1]['first_ms']:.1f} ms, then {median(found[-1]['turns_ms']):.1f} ms")
    for arm, found in arms.items():
        report.arms[arm] = {
            "first_ms": round(median(one["first_ms"] for one in found), 2),
            "p50_ms": round(median(ms for one in found for ms in one["turns_ms"]), 2),
            "p95_ms": round(percentile([ms for one in found for ms in one["turns_ms"]], 95) or 0.0, 2),
            "turns_per_s_at_depth_4": round(median(one["per_s"] for one in found), 2),
            "congestion": found[0]["congestion"],
        }
    report.arms["ideal"] = {"p50_ms": round(IDEAL_MS, 2), "with_20_mbit_ms": round(IDEAL_MS + SERIAL_MS, 2)}
    wire, slow = report.arms["wire"], report.arms["wire_20_mbit"]
    report.line("turn_over_ideal", round(wire["p50_ms"] / IDEAL_MS, 4), "<=", 1.06)
    report.line("first_turn_over_ideal", round(wire["first_ms"] / IDEAL_MS, 4), "<=", 1.15)
    report.line("turns_per_s_at_depth_4", wire["turns_per_s_at_depth_4"], ">=", 20)
    report.line("turn_over_ideal_at_20_mbit", round(slow["p50_ms"] / (IDEAL_MS + SERIAL_MS), 4), "<=", 1.1)
    report.line("control_over_wire", round(report.arms["control"]["p50_ms"] / wire["p50_ms"], 3), ">", 1)


async def _turned(wan: Wan, *, is_hot: bool, turns: int) -> dict[str, Any]:
    """What the first node of a ring measures."""
    names = list(wan.hosts)
    nodes = [
        await wan.machine(name).start(
            [sys.executable, *_NODE], stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        for name in names
    ]
    try:
        publics = [await said(node) for node in nodes]
        ring = [[public, f"{wan.ip[name]}:{_PORT}"] for public, name in zip(publics, names, strict=True)]
        for index, node in enumerate(nodes):
            plan = {"index": index, "ring": ring, "is_hot": is_hot, "turns": turns, "deep_turns": DEEP_TURNS}
            await tell(node, plan)
        for step in ("listening", "linked"):
            for node in nodes:
                if (word := await said(node)) != step:
                    raise OSError(f"a node said {word!r} instead of {step!r}")
            for node in nodes:
                await tell(node, step)
        found: dict[str, Any] = await said(nodes[0])
        return found
    finally:
        for node in nodes:
            if node.returncode is None:
                node.kill()
            await node.wait()


if __name__ == "__main__":
    run(Path(__file__).stem, __doc__, measure)
