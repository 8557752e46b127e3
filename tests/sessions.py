"""Sessions of workers that stand in for processes."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SessionOf:
    """Implements nodewire.kind.TaskSession by what `worker` does at its `receive` and `close`."""

    worker: Any
    task: str
    session: str

    async def receive(self, frame):
        return await self.worker.receive(self.task, self.session, frame)

    async def close(self):
        await self.worker.close(self.task, self.session)


class Named:
    """A worker whose sessions are called by their names, and its own ones otherwise."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._sessions: dict[tuple[str, str], Any] = {}

    def __getattr__(self, name):
        return getattr(self._worker, name)

    async def open(self, task, session, *args, **options):
        opened = self._sessions[task, session] = await self._worker.open(task, session, *args, **options)
        return opened

    async def receive(self, task, session, frame):
        return await self._sessions[task, session].receive(frame)

    async def close(self, task, session):
        await self._sessions[task, session].close()
