"""A tensor there and back between two processes of one host: `python -m bench.network.hop [--json] [--quick]`.

Over the wire (frames, mailboxes, from torch tensor to torch tensor) by TLS 1.3 and by shared memory, over plain
blocking sockets, which is the floor, and over what others carry tensors with, encrypted as well: gRPC over TLS, ZeroMQ
with CURVE, websockets over TLS. Arms take turns, size by size. Ratios are of medians; the throughput of 64 MiB counts
both ways.

gRPC and ZeroMQ are in the extra `bench`; an arm whose library is missing is left out, and the line that needs it is not
ok.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.report import Report, percentile, run
from processes.progress import say

SIZES = {"8_KiB": 8_192, "64_KiB": 65_536, "1_MiB": 2**20, "64_MiB": 64 * 2**20}
TIMES = {"8_KiB": 300, "64_KiB": 300, "1_MiB": 100, "64_MiB": 4}
ROUNDS = 5
LIBRARIES = {"grpc": "grpc", "zmq": "zmq", "websockets": "websockets"}
MOST_64_KIB, MOST_1_MIB, MOST_1_MIB_SHARED, LEAST_64_MIB = 5, 4, 2, 0.2


class Arm:
    """A listener and a dialler, as processes."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def start(self, stack: AsyncExitStack) -> None:
        listener = await self._process(stack, "listen")
        where = await self._said(listener)
        self._dialler = await self._process(stack, "dial", json.dumps(where))
        if self.name in ("wire", "shm"):  # the listener's job names the dialler
            await _tell(listener, await self._said(self._dialler))

    async def took_s(self, size: int, times: int) -> list[float]:
        await _tell(self._dialler, {"bytes": size, "times": times, "warm": max(2, times // 10)})
        found: list[float] = await self._said(self._dialler)
        return found

    async def _said(self, process: asyncio.subprocess.Process) -> Any:
        """Raises OSError: the process has ended; it has said why on standard error."""
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 300)
        if not line:
            raise OSError(f"{self.name}: one of its processes has ended")
        return json.loads(line)

    async def _process(self, stack: AsyncExitStack, *words: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.network.hop_peers", self.name, *words,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**24,
        )  # fmt: skip
        stack.push_async_callback(_stopped, process)
        return process


async def measure(report: Report, options: argparse.Namespace) -> None:
    names = ["sockets", "wire", "shm", *(arm for arm, needs in LIBRARIES.items() if importlib.util.find_spec(needs))]
    times = {size: max(2, n // 10) for size, n in TIMES.items()} if report.quick else TIMES
    took: dict[str, dict[str, list[float]]] = {name: {size: [] for size in SIZES} for name in names}
    async with AsyncExitStack() as stack:
        arms = [Arm(name) for name in names]
        for arm in arms:
            await arm.start(stack)
        for number in range(1 if report.quick else ROUNDS):
            for size, nbytes in SIZES.items():
                for arm in arms[number % len(arms) :] + arms[: number % len(arms)]:
                    took[arm.name][size] += await arm.took_s(nbytes, times[size])
            say(f"round {number + 1}")
    for name, sizes in took.items():
        report.arms[name] = {
            size: {
                "p50_us": round((percentile(found, 50) or 0) * 1e6, 1),
                "p99_us": round((percentile(found, 99) or 0) * 1e6, 1),
            }
            for size, found in sizes.items()
        }
    _judge(report, names)


def _judge(report: Report, names: list[str]) -> None:
    def p50(name: str, size: str) -> float:
        return float(report.arms[name][size]["p50_us"])

    report.line("64_KiB_over_sockets", round(p50("wire", "64_KiB") / p50("sockets", "64_KiB"), 3), "<=", MOST_64_KIB)
    report.line("1_MiB_over_sockets", round(p50("wire", "1_MiB") / p50("sockets", "1_MiB"), 3), "<=", MOST_1_MIB)
    shared = round(p50("shm", "1_MiB") / p50("sockets", "1_MiB"), 3)
    report.line("1_MiB_shared_memory_over_sockets", shared, "<=", MOST_1_MIB_SHARED)
    rate = p50("sockets", "64_MiB") / p50("wire", "64_MiB")
    report.line("64_MiB_of_sockets_throughput", round(rate, 3), ">=", LEAST_64_MIB)
    others = [name for name in names if name in LIBRARIES]
    report.line("encrypted_others_beside_it", len(others), "==", len(LIBRARIES))
    for size in ("64_KiB", "1_MiB", "64_MiB"):
        best = min((p50(name, size) for name in others), default=None)
        report.line(f"{size}_over_best_other", round(p50("wire", size) / best, 3) if best else None, "<", 1)


async def _tell(process: asyncio.subprocess.Process, what: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(what).encode() + b"\n")
    await process.stdin.drain()


async def _stopped(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


if __name__ == "__main__":
    run(Path(__file__).stem, __doc__, measure)
