"""The oracle's own workers: the tasks that it computes again, each loaded when it is first needed."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from nodewire.errors import OverMemory
from nodewire.kind import JobKind, Limits, Worker
from nodewire.market import Market
from nodewire.protocol.manifest import Manifest
from nodewire.worker.lasting import maker


class Workbench:
    """`loaded` is a `verify.inquiry.Loaded`.

    Args:
        readable: the folder of cached blobs, which is all that the workers may read.
    """

    def __init__(self, market: Market, limits: Limits, readable: Path) -> None:
        self._market, self._limits, self._readable = market, limits, readable
        self._workers = AsyncExitStack()
        self._held: dict[str, tuple[Worker, set[str]]] = {}
        """By a kind's worker entry: the worker, and the names of what it has loaded."""

    async def loaded(self, kind: JobKind, manifest: Manifest, task_name: str) -> tuple[Worker, str]:
        """A worker that holds the task, and its name there: the one there is, or a new one when that is full.

        Raises:
            NotFound, BadHash: a blob is not to be had.
            BadTask, OverMemory, WorkerFailed: the task is refused here.
        """
        name = f"{manifest.digest()[:16]}/{task_name}"
        held = self._held.get(kind.worker_entry)
        if held is not None and name in held[1]:
            return held[0], name
        task = manifest.task(task_name)
        program, *weights = [
            await self._market.fetch_blob(ref.sha256, ref.bytes) for ref in (task.program, *task.weights)
        ]
        if held is not None:
            try:
                await held[0].load(name, task.engine, program, weights)
            except OverMemory:
                await self.close()
                held = None
        if held is None:
            make = maker(self._workers, self._limits, self._readable)
            held = self._held[kind.worker_entry] = make(kind.worker_entry), set()
            await held[0].load(name, task.engine, program, weights)
        held[1].add(name)
        return held[0], name

    async def close(self) -> None:
        """End the workers."""
        await self._workers.aclose()
        self._held.clear()
