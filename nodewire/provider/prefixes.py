"""A worker whose stages keep the prompts' beginnings of one job's customer, and find them again."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from nodewire.bounded_dict import BoundedDict
from nodewire.kind import Params, Worker
from nodewire.protocol.codec import OWN, Codings
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.manifest import Manifest

Prefixes = Literal["own", "shared", "off"]
_SHARED = "*"
MAX_NAMES = 4096
"""Of customers with unpaid prompts that a node remembers."""


def whose(prefixes: Prefixes, customer: str, apart: str = "") -> str:
    """The name under which a customer's beginnings are kept; none if they are not.

    By default it is the customer's own, for how long a prompt takes tells who finds it that somebody sent it before.
    A customer that sends for several people, as a gateway does, has one name for what it keeps `apart`.
    """
    own = hashlib.sha256(f"{customer}/{apart}".encode()).hexdigest() if apart else customer
    return {"own": own, "shared": _SHARED, "off": ""}[prefixes]


class UnpaidPrompts:
    """By name, how many units of prompts a node computed and asked nobody for: their jobs ended before.

    The next job of that name finds them, and pays their whole price. It counts what it is charged for, whichever prompt
    that belongs to. Of many names the oldest is forgotten.
    """

    def __init__(self, most: int = MAX_NAMES) -> None:
        self._units = BoundedDict[str, int](most)

    def add(self, name: str, units: int) -> None:
        """A job of that name ended with so many units computed."""
        if units > 0 and name:
            self._units[name] = self._units.pop(name, 0) + units

    def charge(self, name: str, found: int) -> int:
        """How many of the units that a job found cost less; the others make up for unpaid ones."""
        whole = min(found, self._units.get(name, 0))
        if whole:
            self._units[name] -= whole
        if not self._units.get(name, 1):
            del self._units[name]
        return found - whole


class Finding:
    """Implements nodewire.kind.Worker. `whose`: among whose prompts stages look; nobody's if empty.

    No neighbour hears what was found: that stands in no frame, so commitments and statements are what they ever were.
    """

    def __init__(self, worker: Worker, manifest: Manifest, whose: str, unpaid: UnpaidPrompts) -> None:
        self._worker = worker
        self._unpaid = unpaid
        self._whose, self._chunk = whose, manifest.chunk
        self._stages = {task.name for task in manifest.tasks if task.engine == "decoder.stage"}
        self._found: Counter[str] = Counter()
        """Positions by stage."""
        self._is_charged = False
        self.load = worker.load

    async def open(self, task: str, session: str, params: Params, codings: Codings = OWN) -> None:
        if self._whose and task in self._stages:
            params = {**params, "prefixes": self._whose}
        await self._worker.open(task, session, params, codings)

    async def receive(self, task: str, session: str, frame: Frame[Array]) -> list[Frame[Array]]:
        return [self._without(task, out) for out in await self._worker.receive(task, session, frame)]

    async def close(self, task: str, session: str) -> None:
        await self._worker.close(task, session)

    def cached(self, tasks: Collection[str], units: int) -> int:
        """How many of a prompt's `units` these tasks ask less for. What is found is charged once: ask once."""
        self._is_charged = True
        return self._unpaid.charge(self._whose, min(units, self.units(tasks)))

    def ended(self, tasks: Collection[str], units: int) -> None:
        """The job is over, and these tasks had begun so many of the prompt's units."""
        if not self._is_charged and any(task in self._stages for task in tasks):
            self._unpaid.add(self._whose, units - self.units(tasks))

    def units(self, tasks: Collection[str]) -> int:
        """How many of the prompt's units every stage among these tasks had found; 0 without one."""
        return min((self._found[task] // self._chunk for task in tasks if task in self._stages), default=0)

    def _without(self, task: str, out: Frame[Array]) -> Frame[Array]:
        if task not in self._stages or "cached" not in out.meta:
            return out
        found = out.meta["cached"]
        self._found[task] += found if isinstance(found, int) else 0
        return replace(out, meta={name: value for name, value in out.meta.items() if name != "cached"})
