"""In a job that may be judged: telling who consumes it, signed, what was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.wire.evidence import output_signer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.core.job_task_group import JobTaskGroup
    from nodewire.provider.inference.statements import Statements


class StatementSender:
    def __init__(self, statements: Statements, tell: output_signer.Tell, task_group: JobTaskGroup) -> None:
        self.statements = statements
        self.tell = tell
        self._task_group = task_group

    def chunk(self, chunk: int) -> None:
        """Sign what was sent in a chunk, and tell the consumers."""
        for peer, said in self.statements.sign(chunk).items():
            self._task_group.spawn(output_signer.tell(self.tell, peer, said))

    def again(self, peer: str, document: Mapping[str, Any]) -> None:
        """`peer` lacks what was signed on an edge."""
        said = self.statements.again(peer, document.get("edge"), document.get("first"))
        self._task_group.spawn(output_signer.tell(self.tell, peer, said))
