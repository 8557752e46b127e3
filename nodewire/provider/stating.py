"""In a job that may be judged: telling who consumes it, signed, what was sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodewire.job_task_group import JobTaskGroup
from nodewire.protocol.takeover import hedges
from nodewire.provider.part import Part
from nodewire.provider.statements import Statements
from nodewire.wire import signing


class Stating:
    def __init__(self, part: Part, statements: Statements, tell: signing.Tell, task_group: JobTaskGroup) -> None:
        self.statements = statements
        self.tell = tell
        self._part = part
        self._task_group = task_group

    def chunk(self, chunk: int, attempt: int, edge: str | None = None) -> None:
        """Sign what was sent in a chunk (on one edge), and tell the consumers."""
        along = hedges(self._part.request.plan, self._part.takeover)
        for peer, said in self.statements.sign(chunk, attempt, edge).items():
            # What nobody was sent is kept for later.
            mine = [one for one in said if along.get(one.task) != self._part.me]
            self._task_group.spawn(signing.tell(self.tell, peer, mine))

    def whole(self, edge: str) -> None:
        """Sign what this node has computed again in place of who died, and tell the consumer."""
        for chunk in self.statements.whole(edge):
            self.chunk(chunk, self._part.attempt, edge)

    def again(self, peer: str, document: Mapping[str, Any]) -> None:
        """`peer` lacks what was signed on an edge; who computed the edge's inputs may have to be asked, too."""
        self.whole(edge := str(document.get("edge")))
        said = self.statements.again(peer, document.get("edge"), document.get("first"))
        self._task_group.spawn(signing.tell(self.tell, peer, said))
        self._task_group.spawn(self.statements.ask_for(edge, self.tell))
