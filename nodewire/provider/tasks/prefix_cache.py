"""Prompts whose beginnings stages keep, and find again: whose they are, and what they cost then."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection

    from nodewire.kind import Params
    from nodewire.protocol.model.manifest import Manifest
    from nodewire.protocol.tensors.frame import Array, Frame

Prefixes = Literal["own", "shared", "off"]
_SHARED = "*"


def whose(prefixes: Prefixes, customer: str, apart: str = "") -> str:
    """The name under which a customer's beginnings are kept; none if they are not.

    By default it is the customer's own, for how long a prompt takes tells who finds it that somebody sent it before.
    A customer that sends for several people, as a gateway does, has one name for what it keeps `apart`.
    """
    own = hashlib.sha256(f"{customer}/{apart}".encode()).hexdigest() if apart else customer
    return {"own": own, "shared": _SHARED, "off": ""}[prefixes]


class FoundPrompts:
    """The part of one job's prompt that its stages had found and not computed. `whose`: among whose prompts they look.

    No neighbour hears what was found: that stands in no frame, so commitments and statements are what they ever were.
    """

    def __init__(self, manifest: Manifest, whose: str) -> None:
        """`whose` is empty if they look among nobody's."""
        self._whose, self._chunk = whose, manifest.chunk
        self._stages = {task.name for task in manifest.tasks if task.engine == "decoder.stage"}
        self._found: Counter[str] = Counter()
        """Positions by stage."""

    def params(self, task: str, params: Params) -> Params:
        """A task's parameters, of a stage with what it looks among."""
        return {**params, "prefixes": self._whose} if self._whose and task in self._stages else params

    def noted(self, task: str, made: list[Frame[Array]]) -> list[Frame[Array]]:
        """Take note of what a stage says that it found; the frames without that."""
        return [self._without(task, out) for out in made] if task in self._stages else made

    def cached(self, tasks: Collection[str], units: int) -> int:
        """How many of a prompt's `units` these tasks ask less for."""
        return min(units, self.units(tasks))

    def units(self, tasks: Collection[str]) -> int:
        """How many of the prompt's units every stage among these tasks had found; 0 without one."""
        return min((self._found[task] // self._chunk for task in tasks if task in self._stages), default=0)

    def _without(self, task: str, out: Frame[Array]) -> Frame[Array]:
        if "cached" not in out.meta:
            return out
        found = out.meta["cached"]
        self._found[task] += found if isinstance(found, int) else 0
        return replace(out, meta={name: value for name, value in out.meta.items() if name != "cached"})
