"""Whether a node holds a job: what is asked of one whose link was lost. nips/23-recovery.md.

A node holds a job that is open at it, and that nothing has ended. A node that was started anew has no memory of the
job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nodewire.wire.job.query import Query

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodewire.wire.framing.frames import Document

ASK, ANSWER = "presence", "present"
"""The types of the question {job} and of its answer {job, held}."""


class _Job(Protocol):
    @property
    def members(self) -> set[str]: ...

    @property
    def is_held(self) -> bool: ...


class PresenceQuery:
    """One node's part in it, as asker and as asked. `job` finds one that is open here."""

    def __init__(self, job: Callable[[str], _Job | None]) -> None:
        self._job = job
        self._asking = Query(ASK, ANSWER, lambda peer, name: {"held": self._holds(peer, name)}, _held)
        self.handle, self.ask, self.linked = self._asking.handle, self._asking.ask, self._asking.linked

    def _holds(self, peer: str, request: str) -> bool:
        job = self._job(request)
        return job is not None and job.is_held and peer in job.members


def _held(document: Document) -> bool:
    return document.get("held") is True
