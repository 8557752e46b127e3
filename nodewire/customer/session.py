"""What a customer holds open between jobs: relays, wallet, its end of the wire, a worker if it needs one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from nodewire.kind import Job, JobKind, Params, Worker
from nodewire.market import Market
from nodewire.nostr.keys import Keys
from nodewire.nostr.pool import Pool
from nodewire.pay.payer import Payer
from nodewire.protocol.close import Close
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.manifest import Manifest
from nodewire.protocol.plan import LOCAL, Plan
from nodewire.wire.node import Node

StartWorker = Callable[[str], Awaitable[Worker]]
"""Starts a worker around a kind's entry module."""


@dataclass(slots=True)
class Session:
    keys: Keys
    pool: Pool
    relays: tuple[str, ...]
    market: Market
    payer: Payer
    network: str
    """The wallet's network as bolt11 writes it after "ln"."""
    node: Node
    start_worker: StartWorker
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("nodewire.customer"))
    _workers: dict[tuple[str, str], Worker] = field(default_factory=dict)
    _loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def serve_locally(
        self, kind: JobKind, request: str, manifest: Manifest, plan: Plan, params: Params, mailbox: Any
    ) -> None:
        """Run the plan's local tasks here, in a worker, until the job's end."""
        tasks = tuple(a.task for a in plan.tasks if a.provider == LOCAL)
        worker = await self._worker(kind, manifest, tasks)
        desk = _LocalDesk(self.keys, request, plan, mailbox)
        await kind.serve(Job(request, manifest, tasks, params), mailbox, worker, desk)

    async def _worker(self, kind: JobKind, manifest: Manifest, tasks: tuple[str, ...]) -> Worker:
        """A worker with these tasks loaded; it is kept for the next job of the same manifest."""
        key = (manifest.digest(), ",".join(tasks))
        async with self._loading:
            if key not in self._workers:
                worker = await self.start_worker(kind.worker_entry)
                for name in tasks:
                    task = manifest.task(name)
                    program = await self.market.fetch_blob(task.program.sha256, task.program.bytes)
                    weights = [await self.market.fetch_blob(w.sha256, w.bytes) for w in task.weights]
                    await worker.load(name, task.engine, program, weights)
                self._workers[key] = worker
            return self._workers[key]


class _LocalDesk:
    """The customer's own tasks earn nothing; a local driver still closes its chunks."""

    def __init__(self, keys: Keys, request: str, plan: Plan, mailbox: Any) -> None:
        self._keys = keys
        self._request = request
        self._plan = plan
        self._mailbox = mailbox

    async def admit(self, chunk: int) -> None:
        return

    def produced(self, task: str, chunk: int, frame: Frame[Array]) -> None:
        return

    async def completed(self, chunk: int, units: int, end: bool) -> None:
        close = Close.sign(self._keys, request=self._request, attempt=0, chunk=chunk, units=units, end=end)
        for provider in self._plan.providers():
            await self._mailbox.control(provider, {"t": "close", "close": close.document()})
