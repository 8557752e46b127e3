"""Links that break: `python -m bench.network.chaos_wire [--json] [--quick]`: `make chaos-wire`.

- killed: a peer's process is killed (SIGKILL); how long until who waits for its frames knows.
- black hole: nothing comes through between two machines any more, and nobody is told; how long until that is noticed.
- false alarms: links of nodes that are starved by twice as many busy processes as there are cores; how many are lost.
- outage: frames are numbered and flow while the way between two machines is closed for 3 s, again and again; how long
  after its return the link is there, and whether every frame came once and in order.

Machines are those of `bench.tools.wan`; where there can be none, what needs them is skipped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.report import Report, run, spread
from bench.tools.wan import Host, Wan, unavailable
from processes.progress import say

KILLS, HOLES, OUTAGES, FRAMES, BUSY_S = 30, 10, 5, 100_000, 30.0
QUICK_KILLS, QUICK_HOLES, QUICK_OUTAGES, QUICK_FRAMES, QUICK_BUSY_S = 3, 1, 1, 5_000, 5.0
KILL_MS, HOLE_MS, RETURN_S, OUTAGE_S = 100, 1_500, 3.0, 3.0
RTT_MS = 40.0
_PORT = 4_000


class Peer:
    """A node in a process of its own (`bench.network.chaos_wire_node`)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.public = ""
        self.address = ""

    @classmethod
    async def start(cls, stack: AsyncExitStack, wan: Wan | None = None, name: str = "") -> Peer:
        command = [
            sys.executable,
            "-m",
            "bench.network.chaos_wire_node",
            wan.ip[name] if wan is not None else "127.0.0.1",
        ]
        pipes: dict[str, Any] = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        if wan is None:
            peer = cls(await asyncio.create_subprocess_exec(*command, **pipes))
        else:
            peer = cls(await wan.machine(name).start(command, **pipes))
        stack.push_async_callback(peer.kill)
        peer.public, peer.address = await peer.said()
        return peer

    async def tell(self, **what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        await self.process.stdin.drain()

    async def said(self, within_s: float = 120.0) -> Any:
        assert self.process.stdout is not None
        return json.loads(await asyncio.wait_for(self.process.stdout.readline(), within_s))

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


async def _pair(stack: AsyncExitStack, wan: Wan | None = None, **how: Any) -> tuple[Peer, Peer]:
    """Two peers with a job; the first one dials, and sends on `there` what the second one reads."""
    a, b = await Peer.start(stack, wan, "a"), await Peer.start(stack, wan, "b")
    await b.tell(to=a.public, dials=False, **how)
    await a.tell(to=b.public, address=b.address, dials=True, **how)
    for peer in (a, b):
        if (said := await peer.said()) != "linked":
            raise OSError(f"a node said {said!r}")
    return a, b


async def killed(times: int) -> list[float]:
    """Milliseconds from a peer's death until the other's `get` raises."""
    found = []
    for number in range(times):
        async with AsyncExitStack() as stack:
            a, b = await _pair(stack, role="echo")
            await asyncio.sleep(0.2 + random.random() * 0.2)
            at_s = time.monotonic()
            (a if number % 2 else b).process.kill()
            found.append(((await (b if number % 2 else a).said())["lost_s"] - at_s) * 1_000)
    return found


async def black_holes(times: int) -> list[float]:
    """Milliseconds from when nothing comes through any more until a node knows."""
    found = []
    for _ in range(times):
        async with AsyncExitStack() as stack:
            wan = stack.enter_context(Wan({"a": Host(), "b": Host()}, default_rtt_ms=RTT_MS))
            a, b = await _pair(stack, wan, role="echo")
            await asyncio.sleep(0.5 + random.random())
            at_s = time.monotonic()
            wan.cut("a", "b")
            found += [((await peer.said())["lost_s"] - at_s) * 1_000 for peer in (a, b)]
    return found


async def false_alarms(busy_s: float) -> int:
    """Links lost, of nodes that get little of the processors."""
    burning = [multiprocessing.Process(target=_burn, daemon=True) for _ in range(2 * (os.cpu_count() or 1))]
    for one in burning:
        one.start()
    try:
        async with AsyncExitStack() as stack:
            peers = await _pair(stack, role="echo")
            try:
                said = await asyncio.wait_for(asyncio.gather(*(peer.said(busy_s) for peer in peers)), busy_s)
            except TimeoutError:
                return 0
            return len(said)
    finally:
        for one in burning:
            one.kill()


def _burn() -> None:
    while True:
        pass


async def outages(times: int, frames: int) -> dict[str, Any]:
    """What came of numbered frames, and seconds from each return of the way to that of the link."""
    returns: list[float] = []
    async with AsyncExitStack() as stack:
        wan = stack.enter_context(Wan({"a": Host(), "b": Host()}, default_rtt_ms=RTT_MS))
        a, b = await _pair(stack, wan, role="flow", frames=frames, per_s=frames / (times * 2 * (OUTAGE_S + RETURN_S)))
        for _ in range(times):
            await asyncio.sleep(RETURN_S)
            wan.cut("a", "b")
            await asyncio.sleep(OUTAGE_S)
            wan.cut("a", "b", False)
            at_s = time.monotonic()
            said = await a.said()
            returns.append(said["linked_s"] - at_s)
        done = await b.said(600)
    return {"return_s": returns, **done}


async def measure(report: Report, options: argparse.Namespace) -> None:
    random.seed(report.seed)
    quick = report.quick
    ms = await killed(QUICK_KILLS if quick else KILLS)
    report.arms["killed_ms"] = spread(ms)
    report.line("killed_noticed_ms", round(max(ms), 1), "<=", KILL_MS)
    say(f"killed: noticed after {max(ms):.0f} ms at most")
    lost = await false_alarms(QUICK_BUSY_S if quick else BUSY_S)
    report.line("false_alarms", lost, "==", 0)
    say(f"busy processors: {lost} links lost")
    if (why := unavailable()) is not None:
        report.skip(why)
        return
    ms = await black_holes(QUICK_HOLES if quick else HOLES)
    report.arms["black_hole_ms"] = spread(ms)
    report.line("black_hole_noticed_ms", round(max(ms), 1), "<=", HOLE_MS)
    say(f"black holes: noticed after {max(ms):.0f} ms at most")
    flowed = await outages(QUICK_OUTAGES if quick else OUTAGES, QUICK_FRAMES if quick else FRAMES)
    report.arms["outages"] = flowed
    report.line("link_after_return_s", round(max(flowed["return_s"]), 3), "<=", RETURN_S)
    report.line("frames", flowed["frames"], "==", QUICK_FRAMES if quick else FRAMES)
    report.line("frames_lost_twice_or_out_of_order", flowed["wrong"], "==", 0)


if __name__ == "__main__":
    run(Path(__file__).stem, __doc__, measure)
