"""Whether a node holds a job: what is asked of one that a takeover replaced. NIPS.md, "Takeovers".

A node holds a job that is open at it, or that it would still have open if no takeover had ended its part. It does not
if its part has failed or ended, or it has no memory of the job, being started anew; nor does one that has just stood
still itself, whatever the others made of that.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from nodewire.wire.asking import Asking
from nodewire.wire.frames import Document

ASK, ANSWER = "presence", "present"
"""The types of the question {job} and of its answer {job, held}."""
STOOD_STILL_S = 10.0
"""For how long after it stood still a node says of nothing that it holds it."""
MAX_REPLACED = 1_024


class _Job(Protocol):
    request: str

    @property
    def members(self) -> set[str]: ...

    @property
    def is_held(self) -> bool: ...


class Presence:
    """One node's part in it, as asker and as asked. `job` finds one that is open here."""

    def __init__(self, job: Callable[[str], _Job | None]) -> None:
        self._job = job
        self._replaced: OrderedDict[str, frozenset[str]] = OrderedDict()
        """Jobs that a takeover took from this node, and who was in them."""
        self._still_at_s = float("-inf")
        self._asking = Asking(ASK, ANSWER, lambda peer, name: {"held": self._holds(peer, name)}, _held)
        self.heard, self.ask = self._asking.heard, self._asking.ask

    def replaced(self, job: _Job) -> None:
        """A takeover leaves nothing of `job` to this node. It is called before the job ends for that."""
        if job.is_held:
            self._replaced[job.request] = frozenset(job.members)
            while len(self._replaced) > MAX_REPLACED:
                self._replaced.popitem(last=False)

    def stood_still(self) -> None:
        """This process has not run for so long that others may have given it up."""
        self._still_at_s = asyncio.get_running_loop().time()

    def _holds(self, peer: str, request: str) -> bool:
        if asyncio.get_running_loop().time() < self._still_at_s + STOOD_STILL_S:
            return False
        job = self._job(request)
        if job is not None and job.is_held:
            return peer in job.members
        return peer in self._replaced.get(request, ())


def _held(document: Document) -> bool:
    return document.get("held") is True
