"""A worker whose stages keep the prompts' beginnings of one job's customer, and find them again."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from nodewire.kind import Params, Worker
from nodewire.protocol.codec import OWN, Codings
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.manifest import Manifest

Prefixes = Literal["own", "shared", "off"]
_SHARED = "*"


def whose(prefixes: Prefixes, customer: str, apart: str = "") -> str:
    """The name under which a customer's beginnings are kept; none if they are not.

    By default it is the customer's own, for how long a prompt takes tells who finds it that somebody sent it before.
    A customer that sends for several people, as a gateway does, has one name for what it keeps `apart`.
    """
    own = hashlib.sha256(f"{customer}/{apart}".encode()).hexdigest() if apart else customer
    return {"own": own, "shared": _SHARED, "off": ""}[prefixes]


class Finding:
    """Implements nodewire.kind.Worker. `whose`: among whose prompts stages look; nobody's if empty.

    No neighbour hears what was found: that stands in no frame, so commitments and statements are what they ever were.
    """

    def __init__(self, worker: Worker, manifest: Manifest, whose: str) -> None:
        self._worker = worker
        self._whose, self._chunk = whose, manifest.chunk
        self._stages = {task.name for task in manifest.tasks if task.engine == "decoder.stage"}
        self._found: Counter[str] = Counter()
        """Positions by stage."""
        self.load = worker.load

    async def open(self, task: str, session: str, params: Params, codings: Codings = OWN) -> None:
        if self._whose and task in self._stages:
            params = {**params, "prefixes": self._whose}
        await self._worker.open(task, session, params, codings)

    async def receive(self, task: str, session: str, frame: Frame[Array]) -> list[Frame[Array]]:
        return [self._without(task, out) for out in await self._worker.receive(task, session, frame)]

    async def close(self, task: str, session: str) -> None:
        await self._worker.close(task, session)

    def units(self, tasks: Collection[str]) -> int:
        """How many of the prompt's units every stage among these tasks had found; 0 without one."""
        return min((self._found[task] // self._chunk for task in tasks if task in self._stages), default=0)

    def _without(self, task: str, out: Frame[Array]) -> Frame[Array]:
        if task not in self._stages or "cached" not in out.meta:
            return out
        found = out.meta["cached"]
        self._found[task] += found if isinstance(found, int) else 0
        return replace(out, meta={name: value for name, value in out.meta.items() if name != "cached"})
