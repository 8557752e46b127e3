"""Jobs that their customers gave up before they had begun here: a withdrawal may overtake the ticket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.core.bounded_dict import BoundedDict
from nodewire.protocol.job.chunk_close import WITHDRAW

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_KEPT = 1_024


class Withdrawals:
    """The newest withdrawals, by customer and request."""

    def __init__(self) -> None:
        self._kept = BoundedDict[tuple[str, str], None](MAX_KEPT)

    def note(self, peer: str, document: Mapping[str, Any]) -> None:
        """A control document of a job that is not open here came from `peer`."""
        request = document.get("job")
        if document.get("t") == WITHDRAW and isinstance(request, str) and len(request) == 64:
            self._kept[peer, request] = None

    def has(self, customer: str, request: str) -> bool:
        return (customer, request) in self._kept
