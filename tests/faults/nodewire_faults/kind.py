"""Kind 8843 as a dishonest provider runs it: the real kind, with a worker entry that corrupts what it computes."""

from __future__ import annotations

import os

from kinds.k8843 import SplitInference
from nodewire.kind import Desk, Job, Mailbox, Params, TaskSession, Worker
from nodewire.protocol.model.edge_codec import OWN, Codings
from nodewire_faults import CHEATS, SENDING, WORKERS
from nodewire_faults.sender import Sending

CHEAT = "NODEWIRE_FAULTS_CHEAT"
TASKS = "NODEWIRE_FAULTS_TASKS"
AFTER = "NODEWIRE_FAULTS_AFTER"
ORDERS = "nodewire_faults"
"""The session parameter by which the worker learns what the daemon's environment says."""


class FaultySplitInference(SplitInference):
    def __init__(self) -> None:
        super().__init__()
        cheat = os.environ[CHEAT]
        if cheat not in CHEATS:
            raise ValueError(f"{CHEAT}={cheat!r} is not one of {', '.join(CHEATS)}")
        self.worker_entry = f"nodewire_faults.workers.{WORKERS[cheat]}"
        self._cheat = cheat
        self._tasks = [name for name in os.environ.get(TASKS, "").split(",") if name]
        self._after = int(os.environ.get(AFTER, "0"))
        self._orders = {"tasks": self._tasks, "after": self._after}

    async def serve(self, job: Job, mailbox: Mailbox, worker: Worker, desk: Desk) -> None:
        if self._cheat in SENDING:
            tasks = self._tasks or job.tasks
            edges = {edge.name for task in tasks for edge in job.manifest.outputs(task)}
            mailbox = Sending(mailbox, job.request, self._cheat, edges, self._after)
        await super().serve(job, mailbox, _Ordered(worker, self._orders), desk)


class _Ordered:
    """A worker that is told with every session which tasks to corrupt."""

    def __init__(self, worker: Worker, orders: dict[str, object]) -> None:
        self._worker, self._orders = worker, orders

    async def open(self, task: str, session: str, params: Params, codings: Codings = OWN) -> TaskSession:
        return await self._worker.open(task, session, {**params, ORDERS: {**self._orders, "task": task}}, codings)


KIND = FaultySplitInference()
