"""How long a node takes for its part of a job's turn. nips/22-flow-and-control.md.

Its customer asks when a ring has slowed down.

It is the node's own word. Who says too little is found by trying a ring without it, who says too much is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nodewire.wire.job.query import Query

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodewire.wire.framing.frames import Document

ASK, ANSWER = "pace", "paced"
"""The types of the question {job} and of its answer {job, us}."""
MAX_US = 2**40


class _Job(Protocol):
    @property
    def members(self) -> set[str]: ...

    @property
    def turn_us(self) -> Callable[[], int] | None: ...


class LatencyQuery:
    """One node's part in it, as asker and as asked. `job` finds one that is open here."""

    def __init__(self, job: Callable[[str], _Job | None]) -> None:
        self._job = job
        self._asking = Query(ASK, ANSWER, self._said, _us)
        self.handle, self.ask = self._asking.handle, self._asking.ask
        """Asked, a node says the microseconds of its part of a turn."""

    def _said(self, peer: str, request: str) -> dict[str, int] | None:
        job = self._job(request)
        if job is None or job.turn_us is None or peer not in job.members:
            return None
        return {"us": min(job.turn_us(), MAX_US)}


def _us(document: Document) -> int:
    us = document.get("us")
    return us if type(us) is int and 0 <= us <= MAX_US else MAX_US
