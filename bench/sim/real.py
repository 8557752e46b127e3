"""The same trace on real processes: each node one (`bench.sim.machine`), sockets between them, sleeps for what is far,
slow or computed. It has the clock, event loops and kernel that the simulator leaves out, and shows what they do.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Sequence

from bench.sim.admission import Line, Router, Running, State
from bench.sim.simulator import Result
from bench.sim.traces import Session
from bench.tools.lines import said, tell
from nodewire.plan.place.model import CUSTOMER, Chain, Placement, Pool, Workload


async def run_real(
    pool: Pool, chain: Chain, placement: Placement, router: Router, workload: Workload, trace: Sequence[Session]
) -> Result:
    """What `Simulation.run` returns, in real milliseconds. Ways must take what a node holds as a whole, and every
    boundary the same bytes."""
    customer = _Customer(pool, chain, placement, router, workload)
    machines = {}
    try:
        for stage in placement.stages:
            pipe = asyncio.subprocess.PIPE
            machines[stage.node] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bench.sim.machine", stdin=pipe, stdout=pipe
            )
        for stage in placement.stages:
            others = [*(node for node in machines if node != stage.node), CUSTOMER]
            config = {
                "table": customer.state.predictor.table(stage),
                "link_ms": {node: pool.link_ms(stage.node, node) for node in others},
                "sending_ms": chain.boundaries[0] / pool.nodes[stage.node].up,
            }
            await tell(machines[stage.node], config)
        ports = {node: int(await said(machine)) for node, machine in machines.items()}
        await customer.link(ports)
        for node, machine in machines.items():
            await tell(
                machine, {**{other: port for other, port in ports.items() if other != node}, CUSTOMER: customer.port}
            )
        for machine in machines.values():
            if await said(machine) != "linked":
                raise OSError("a machine did not link")
        return await customer.replay(trace)
    finally:
        await customer.close()
        for machine in machines.values():
            if machine.returncode is None:
                machine.kill()
            await machine.wait()


class _Customer:
    def __init__(self, pool: Pool, chain: Chain, placement: Placement, router: Router, workload: Workload) -> None:
        self.state = State.of(pool, chain, placement, workload)
        self.port = 0
        self._line, self._result = Line(self.state, router), Result()
        self._running: dict[int, Running] = {}
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self._left = 0
        self._done = asyncio.Event()
        self._begun = 0.0

    async def link(self, ports: dict[int, int]) -> None:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        for node, port in ports.items():
            _, self._writers[node] = await asyncio.open_connection("127.0.0.1", port)

    async def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        if self._server is not None:
            self._server.close()

    async def replay(self, trace: Sequence[Session]) -> Result:
        loop = asyncio.get_running_loop()
        self._begun, self._left = loop.time(), len(trace)
        for session in trace:
            loop.call_at(self._begun + session.at_ms / 1_000, self._arrive, Running(session))
        await self._done.wait()
        return self._result

    def _now_ms(self) -> float:
        return (asyncio.get_running_loop().time() - self._begun) * 1_000

    def _arrive(self, running: Running) -> None:
        self._begin(self._line.come(running))

    def _begin(self, admitted: Iterable[Running]) -> None:
        for running in admitted:
            self._running[id(running)] = running
            left, chunk = running.session.prompt, self.state.workload.chunk
            while left > 0:
                self._send(running, min(left, chunk), is_last=left <= chunk)
                left -= chunk

    def _send(self, running: Running, positions: int, *, is_last: bool) -> None:
        pool, first = self.state.pool, running.way[0].node
        way = [*(stage.node for stage in running.way), CUSTOMER]
        frame = {"session": id(running), "positions": positions, "is_last": is_last, "way": way}
        ms = pool.link_ms(CUSTOMER, first) + self.state.chain.boundaries[0] * positions * pool.byte_ms(CUSTOMER, first)
        line = json.dumps(frame).encode() + b"\n"
        asyncio.get_running_loop().call_later(ms / 1_000, self._writers[first].write, line)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            frame = json.loads(line)
            if frame["is_last"]:
                self._turned(self._running[frame["session"]])

    def _turned(self, running: Running) -> None:
        now = self._now_ms()
        running.made += 1
        self._result.made_ms.append(now)
        if running.made == 1:
            running.first_ms = now - running.session.at_ms
        if running.made < running.session.output:
            self._send(running, 1, is_last=True)
            return
        self._result.finished.append((running.session, running.first_ms, now - running.session.at_ms))
        self._line.leave(running)
        del self._running[id(running)]
        self._left -= 1
        if self._left:
            self._begin(self._line.admitted())
        else:
            self._done.set()
