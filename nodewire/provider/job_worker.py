"""A shared worker as one job sees it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

from nodewire.errors import NodewireError
from nodewire.kind import Params, SharedWorker, Turn
from nodewire.protocol.codec import OWN, Codings
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.manifest import Manifest
from nodewire.provider.call_times import CallTimes
from nodewire.provider.prefixes import FoundPrompts, UnpaidPrompts
from nodewire.provider.serving import loaded_name


class JobWorker:
    """Implements nodewire.kind.Worker. Tasks go by the manifest's own names.

    Calls wait by `turns` and are timed. Stages look among the prompts of `whose`, nobody's if that is empty.
    """

    def __init__(
        self,
        worker: SharedWorker,
        manifest: Manifest,
        turns: Mapping[str, Turn],
        *,
        whose: str = "",
        unpaid: UnpaidPrompts | None = None,
    ) -> None:
        """`unpaid`: what jobs before left unpaid."""
        self.times = CallTimes()
        self.prompts = FoundPrompts(manifest, whose, unpaid or UnpaidPrompts())
        self.load = worker.load
        self._worker = worker
        self._names = {task.name: loaded_name(manifest.digest(), task.name) for task in manifest.tasks}
        self._turns = turns
        self._open: dict[tuple[str, str], None] = {}
        """Tasks and sessions that may be open: whoever is stopped while it opens or closes one leaves it so."""

    async def open(self, task: str, session: str, params: Params, codings: Codings = OWN) -> None:
        turn, params = self._turns.get(task, Turn()), self.prompts.params(task, params)
        self._open[task, session] = None
        await self._worker.open(self._names[task], session, params, codings, turn)

    async def receive(self, task: str, session: str, frame: Frame[Array]) -> list[Frame[Array]]:
        began_ns = time.perf_counter_ns()
        made = await self._worker.receive(self._names[task], session, frame)
        self.times.add(task, (time.perf_counter_ns() - began_ns) // 1_000)
        return self.prompts.noted(task, made)

    async def close(self, task: str, session: str) -> None:
        await self._worker.close(self._names[task], session)
        self._open.pop((task, session), None)

    async def end(self) -> None:
        """Close what is still open: a session that nobody closes keeps its slot as long as the worker lives."""
        for task, session in list(self._open):
            with suppress(NodewireError):  # of a worker that has died
                await self.close(task, session)
