"""Which tasks of a job are this provider's, as the newest takeover says."""

from __future__ import annotations

from nodewire.protocol.job import Request
from nodewire.protocol.manifest import Manifest
from nodewire.protocol.plan import LOCAL
from nodewire.protocol.takeover import Takeover, assigned, present


class Part:
    def __init__(self, me: str, request: Request, manifest: Manifest, takeover: Takeover | None) -> None:
        """`me`: this provider's public key. `takeover`: the one by which it enters the job, None if it was assigned."""
        self.me = me
        self.request = request
        self.manifest = manifest
        self.takeover = takeover
        self.generates = manifest.mode == "generate"
        self.hedged = {task for task, hedge in request.plan.hedges.items() if hedge == me and takeover is None}
        """What this node computes, from the beginning, along with who has it: nobody consumes it before it enters."""
        self.tasks = self._tasks()
        self.entered = self._entered()
        """By task that this node took over, the first chunk for which it is paid."""
        self.first = min(self.entered.values()) if takeover is not None else 0
        """The first chunk that may be this node's work."""
        self.replayed = self.first
        """Frames of the chunks before this one come again, for a task that this node took over."""

    @property
    def attempt(self) -> int:
        return self.takeover.attempt if self.takeover is not None else 0

    @property
    def driver(self) -> str:
        provider = assigned(self.request.plan, self.takeover)[self.manifest.driver.name]
        return self.request.customer if provider == LOCAL else provider

    @property
    def drives(self) -> bool:
        return self.driver == self.me

    @property
    def others(self) -> list[str]:
        """All members that are in the job now, this node left out."""
        return [one for one in present(self.request.plan, self.takeover) if one != self.me]

    @property
    def closed_before(self) -> int:
        """The first chunk that had not been closed when the newest takeover was signed; 0 without one."""
        return max((first for *_, first in self.takeover.replaced), default=0) if self.takeover is not None else 0

    @property
    def inner_edges(self) -> set[str]:
        """Those between tasks, of this node's tasks."""
        mine = {*self.tasks}
        return {edge.name for edge in self.manifest.inner_edges if {edge.source, edge.target} & mine}

    def feeds(self, edge: str) -> str | None:
        """Who has now what comes of an edge of a task that this node took over, and may have other bits of it than were
        signed. None of other edges."""
        found = next((one for one in self.manifest.edges if one.name == edge), None)
        if found is None or found.source not in self.tasks or found.source not in self.entered:
            return None
        return assigned(self.request.plan, self.takeover).get(found.target)

    def took_over(self, takeover: Takeover) -> list[str]:
        """The assignment changes; the tasks that come here by it."""
        before, self.takeover = set(self.tasks), takeover
        self.tasks, self.entered = self._tasks(), self._entered()
        come = [task for task in self.tasks if task not in before]
        self.replayed = max((self.replayed, *(self.entered[task] for task in come)))
        return come

    def _tasks(self) -> tuple[str, ...]:
        now = assigned(self.request.plan, self.takeover)
        return tuple(task for task, provider in now.items() if provider == self.me or task in self.hedged)

    def _entered(self) -> dict[str, int]:
        if self.takeover is None:
            return {}
        return {task: first for task, _, entered, first in self.takeover.replaced if entered == self.me}
