"""A shared worker as one job sees it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError
from nodewire.kind import Params, SharedWorker, TaskSession, Turn
from nodewire.protocol.model.edge_codec import OWN, Codings
from nodewire.provider.tasks.call_times import CallTimes
from nodewire.provider.tasks.loader import loaded_name
from nodewire.provider.tasks.prefix_cache import FoundPrompts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.protocol.model.manifest import Manifest
    from nodewire.protocol.tensors.frame import Array, Frame


class JobWorker:
    """Implements nodewire.kind.Worker. Tasks go by the manifest's own names.

    Calls wait by `turns` and are timed. Stages look for a prompt's beginning among those kept for `whose`; nowhere
    if that is empty.
    """

    def __init__(
        self,
        worker: SharedWorker,
        manifest: Manifest,
        turns: Mapping[str, Turn],
        *,
        whose: str = "",
    ) -> None:
        self.times = CallTimes()
        self.prompts = FoundPrompts(manifest, whose)
        self._worker = worker
        self._names = {task.name: loaded_name(manifest.digest(), task.name) for task in manifest.tasks}
        self._turns = turns
        self._sessions: list[JobSession] = []

    async def open(self, task: str, session: str, params: Params, codings: Codings = OWN) -> JobSession:
        turn, params = self._turns.get(task, Turn()), self.prompts.params(task, params)
        opened = JobSession(await self._worker.open(self._names[task], session, params, codings, turn), self, task)
        self._sessions.append(opened)
        return opened

    async def end(self) -> None:
        """Close what is open: a session that nobody closes keeps its slot as long as the worker lives."""
        for session in self._sessions:
            with suppress(NodewireError):  # the others all the same
                await session.close()


class JobSession:
    """Implements nodewire.kind.TaskSession."""

    def __init__(self, session: TaskSession, worker: JobWorker, task: str) -> None:
        self.close = session.close
        self._receive = session.receive
        self._worker, self._task = worker, task

    async def receive(self, frame: Frame[Array]) -> list[Frame[Array]]:
        began_ns = time.perf_counter_ns()
        made = await self._receive(frame)
        self._worker.times.add(self._task, (time.perf_counter_ns() - began_ns) // 1_000)
        return self._worker.prompts.noted(self._task, made)
