"""One machine of `bench.sim.real`: a process that takes frames over TCP, sleeps for what they take, sends them on.

On stdin a line of JSON says who it is, then one says where the others listen; on stdout it says its port.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from typing import Any

from bench.sim.simulator import MOST_POSITIONS
from nodewire.plan.place.model import interpolated


class Machine:
    """`way` in a frame is the nodes that it still visits, itself first, then -1 for the customer."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.table = tuple((int(batch), float(ms)) for batch, ms in config["table"])
        self.link_ms = config["link_ms"]
        self.sending_ms = config["sending_ms"]
        self.writers: dict[int, asyncio.StreamWriter] = {}
        self.waiting: deque[dict[str, Any]] = deque()
        self.leaving: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.arrived = asyncio.Event()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            self.waiting.append(json.loads(line))
            self.arrived.set()

    async def compute(self) -> None:
        while True:
            await self.arrived.wait()
            batch, positions = [], 0
            while self.waiting and (not batch or positions + self.waiting[0]["positions"] <= MOST_POSITIONS):
                frame = self.waiting.popleft()
                batch.append(frame)
                positions += frame["positions"]
            if not self.waiting:
                self.arrived.clear()
            await asyncio.sleep(interpolated(self.table, positions) / 1_000)
            for frame in batch:
                frame["way"] = frame["way"][1:]
                self.leaving.put_nowait(frame)

    async def send(self) -> None:
        """The uplink: one frame after the other, by a clock of its own so that late wake-ups do not add up."""
        loop, free = asyncio.get_running_loop(), 0.0
        while True:
            frame = await self.leaving.get()
            target = frame["way"][0]
            if target == -1:
                frame["positions"] = 1
            free = max(free, loop.time()) + self.sending_ms * frame["positions"] / 1_000
            line = json.dumps(frame).encode() + b"\n"
            loop.call_at(free + self.link_ms[str(target)] / 1_000, self.writers[target].write, line)


async def main() -> None:
    loop = asyncio.get_running_loop()
    machine = Machine(json.loads(await loop.run_in_executor(None, sys.stdin.readline)))
    server = await asyncio.start_server(machine.take, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    for node, port in json.loads(await loop.run_in_executor(None, sys.stdin.readline)).items():
        _, machine.writers[int(node)] = await asyncio.open_connection("127.0.0.1", port)
    print('"linked"', flush=True)
    await asyncio.gather(machine.compute(), machine.send())


if __name__ == "__main__":
    asyncio.run(main())
