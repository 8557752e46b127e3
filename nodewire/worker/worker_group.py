"""Several worker processes as one: each task lies in one of them, so that tasks of different ones compute at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import NotFound
from nodewire.protocol.model.edge_codec import OWN, Codings
from nodewire.worker.calls import NO_TURN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from nodewire.kind import MakeWorker, Params, SharedWorker, TaskSession, Turn


class Workers:
    """Implements nodewire.kind.SharedWorker.

    A task goes to the worker that has the least loaded, of equals to the one whose last task is oldest: neighbours in a
    manifest, as parallel branches are, come to lie apart.
    """

    def __init__(self, workers: Sequence[SharedWorker]) -> None:
        self._workers = list(workers)
        """The one that got a task last stands last."""
        self._loaded_bytes = {id(worker): 0 for worker in workers}
        self._homes: dict[str, SharedWorker] = {}

    async def load(
        self, task: str, engine: str, program: Path, weights: Sequence[Path], slots: int = 0
    ) -> Mapping[str, int]:
        worker = self._homes.get(task) or min(self._workers, key=lambda one: self._loaded_bytes[id(one)])
        took = await worker.load(task, engine, program, weights, slots)
        self._homes[task] = worker
        self._loaded_bytes[id(worker)] += took["memory_bytes"]
        self._workers.remove(worker)
        self._workers.append(worker)
        return took

    async def open(
        self, task: str, session: str, params: Params, codings: Codings = OWN, turn: Turn = NO_TURN
    ) -> TaskSession:
        """As the port. Raises NotFound: the task is not loaded."""
        if (worker := self._homes.get(task)) is None:
            raise NotFound("task", f"{task[:80]} is not loaded")
        return await worker.open(task, session, params, codings, turn)


def several(make: Callable[[str], SharedWorker], count: int) -> MakeWorker:
    """What makes `count` workers around an entry, as one."""
    return make if count == 1 else lambda entry: Workers([make(entry) for _ in range(count)])
