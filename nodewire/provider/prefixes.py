"""Prompts whose beginnings stages keep, and find again: whose they are, and what they cost then."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from nodewire.bounded_dict import BoundedDict
from nodewire.kind import Params
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


class FoundPrompts:
    """The part of one job's prompt that its stages had found and not computed. `whose`: among whose prompts they look.

    No neighbour hears what was found: that stands in no frame, so commitments and statements are what they ever were.
    """

    def __init__(self, manifest: Manifest, whose: str, unpaid: UnpaidPrompts) -> None:
        """`whose` is empty if they look among nobody's."""
        self._unpaid = unpaid
        self._whose, self._chunk = whose, manifest.chunk
        self._stages = {task.name for task in manifest.tasks if task.engine == "decoder.stage"}
        self._found: Counter[str] = Counter()
        """Positions by stage."""
        self._is_charged = False

    def params(self, task: str, params: Params) -> Params:
        """A task's parameters, of a stage with what it looks among."""
        return {**params, "prefixes": self._whose} if self._whose and task in self._stages else params

    def noted(self, task: str, made: list[Frame[Array]]) -> list[Frame[Array]]:
        """Take note of what a stage says that it found; the frames without that."""
        return [self._without(task, out) for out in made] if task in self._stages else made

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
        if "cached" not in out.meta:
            return out
        found = out.meta["cached"]
        self._found[task] += found if isinstance(found, int) else 0
        return replace(out, meta={name: value for name, value in out.meta.items() if name != "cached"})
