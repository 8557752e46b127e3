"""The oracle's own workers, and the tasks that it computes again, each loaded when it is first needed.

A worker need not hold a whole model: a dispute is about one task, whose inputs are those that its producers signed.
Where the memory is full, the task that was used longest ago makes room.

A worker's start takes 3 to 4 s of computing, most of which is torch's import, and 230 MB of memory that it shares with
nobody. A dispute may have less time than that, so the first worker of each kind is started before one comes.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError, OverMemory
from nodewire.protocol.model.manifest import REFERENCE_ENGINE, Manifest
from nodewire.worker.persistent_worker import LastingWorker, maker

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from nodewire.kind import JobKind, Limits, Worker
    from nodewire.market import Market

_log = logging.getLogger("nodewire.oracle.workbench")


class Workbench:
    """`loaded` is a `verify.inquiry.Loaded`.

    Args:
        readable: the folder of cached blobs, which is all that the workers may read.

    """

    def __init__(self, market: Market, limits: Limits, readable: Path) -> None:
        self._market, self._limits, self._readable = market, limits, readable
        self._workers = AsyncExitStack()
        self._held: dict[str, tuple[LastingWorker, dict[str, frozenset[str]]]] = {}
        """By a kind's worker entry: the worker, and what it has loaded with its blobs, used longest ago first."""
        self._loading: dict[str, asyncio.Task[Worker]] = {}
        self._reading: frozenset[str] = frozenset()
        """The blobs of what is being loaded."""
        self._turn = asyncio.Lock()

    async def warm(self, kinds: Iterable[JobKind], after_s: float) -> None:
        """Have a worker for each of `kinds`, `after_s` from now: oracles of one machine import torch one by one."""
        await asyncio.sleep(after_s)
        for entry in {kind.worker_entry for kind in kinds}:
            try:
                await self._holding(entry)[0].ready()
            except (NodewireError, OSError) as error:
                _log.warning("no worker for %s yet: %s", entry, error)

    async def loaded(
        self, kind: JobKind, manifest: Manifest, task_name: str, *, engine: str = ""
    ) -> tuple[Worker, str]:
        """A worker that holds the task, and its name there.

        Others that it holds make room. `engine` is another than the manifest's.

        Who gives up waiting does not end the loading: the next that asks finds it done.

        Raises:
            NotFound, BadHash: a blob is not to be had.
            BadTask, OverMemory, WorkerFailed: the task is refused here.

        """
        name = f"{manifest.digest()[:16]}/{task_name}{engine and '@'}{engine}"
        loading = self._loading.get(name)
        if loading is None:
            loading = self._loading[name] = asyncio.create_task(self._load(kind, manifest, task_name, name, engine))
            loading.add_done_callback(lambda _: self._loading.pop(name, None))
        return await asyncio.shield(loading), name

    async def reference(self, kind: JobKind, manifest: Manifest, task_name: str) -> tuple[Worker, str]:
        """A worker that holds the task in float32, and its name there. Raises as `loaded`."""
        return await self.loaded(kind, manifest, task_name, engine=REFERENCE_ENGINE)

    @property
    def workers(self) -> list[LastingWorker]:
        """Those that there are now."""
        return [worker for worker, _ in list(self._held.values())]

    @property
    def blobs(self) -> frozenset[str]:
        """Those that the workers read again if they must be restarted."""
        return self._reading.union(*(blobs for _, held in self._held.values() for blobs in held.values()))

    async def close(self) -> None:
        """End the workers."""
        for loading in list(self._loading.values()):
            loading.cancel()
        await asyncio.gather(*self._loading.values(), return_exceptions=True)
        await self._workers.aclose()
        self._held.clear()

    async def _load(self, kind: JobKind, manifest: Manifest, task_name: str, name: str, engine: str) -> Worker:
        async with self._turn:
            worker, loaded = self._holding(kind.worker_entry)
            if name in loaded:
                loaded[name] = loaded.pop(name)
                return worker
            task = manifest.task(task_name)
            refs = task.program, *task.weights
            self._reading = frozenset(ref.sha256 for ref in refs)
            try:
                program, *weights = [await self._market.fetch_blob(ref.sha256, ref.bytes) for ref in refs]
                while True:
                    try:
                        await worker.load(name, engine or task.engine, program, weights)
                        break
                    except OverMemory:
                        if not loaded:
                            raise
                        oldest = next(iter(loaded))
                        del loaded[oldest]
                        await worker.unload(oldest)
                loaded[name] = self._reading
            finally:
                self._reading = frozenset()
            return worker

    def _holding(self, entry: str) -> tuple[LastingWorker, dict[str, frozenset[str]]]:
        if entry not in self._held:
            self._held[entry] = maker(self._workers, self._limits, self._readable)(entry), {}
        return self._held[entry]
