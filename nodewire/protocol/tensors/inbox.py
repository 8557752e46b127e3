"""The port between a job's mailbox and who computes what came; the wire knows no kind, and a kind no wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nodewire.errors import NodewireError
    from nodewire.protocol.tensors.frame import Array, Frame


class Inbox(Protocol):
    """Where the frames of one job wait for the tasks that they are for, on a node that has taken them off its windows.

    What waits here is bounded by the inbox alone.
    """

    def put(self, frame: Frame[Array]) -> bool:
        """Take a frame as it comes; False if the inbox takes no more. It raises nothing."""

    def fail(self, error: NodewireError) -> None:
        """The job has ended by this error."""
