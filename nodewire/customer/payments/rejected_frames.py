"""Frames of providers that their consumer cannot compute: either may lie, so what is bought anew is without both.

Whoever says so signs it, and names the edge; that the customer's own frames are not meant follows from the plan. Who
says that the customer is at fault may lie, too: then what is bought anew is without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import BadFrame, LinkLost, NodeFailed, NodewireError, PaymentRequired, TimedOut
from nodewire.protocol.job.frame_refusal import suspects
from nodewire.protocol.job.plan import LOCAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.protocol.job.feedback import Feedback
    from nodewire.protocol.model.manifest import Manifest


class FrameRejection(BadFrame):
    """`producers` sent what `refuser` says that it cannot compute; that is empty where it was this customer itself."""

    def __init__(self, field: str, reason: str, producers: frozenset[str], refuser: str = "") -> None:
        super().__init__(field, reason)
        self.producers = producers
        self.refuser = refuser

    @property
    def whom(self) -> set[str]:
        """Who may be to blame."""
        return {*self.producers, self.refuser} - {""}


BEGINS_ANEW = (LinkLost, TimedOut, NodeFailed, PaymentRequired, FrameRejection)
"""What others may do better at, whoever says it."""


def is_one_word(error: NodewireError) -> bool:
    """Whether all that speaks for it is one provider, which may lie: that the customer's input is bad, say."""
    return bool(error.by) and not isinstance(error, BEGINS_ANEW)


def reported(said: Feedback, manifest: Manifest, now: Mapping[str, str]) -> FrameRejection | None:
    """What a provider's bad-frame means, with `now` every task's provider.

    None if it gets the customer's frames alone, or names an edge on which those came: then it is the customer's fault.
    """
    producers = suspects(manifest, now, said.provider, said.edge)
    if not producers:
        return None
    named = ", ".join(sorted(one[:8] for one in producers))
    reason = f"{said.provider[:8]} cannot compute what came from {named}"
    return FrameRejection(said.edge or "frames", reason, producers, said.provider)


def rejection_of(error: BadFrame, edge: str, manifest: Manifest, now: Mapping[str, str]) -> FrameRejection | None:
    """What it means that this customer, or a task that runs here, cannot use a frame on `edge`.

    None if no provider made it.
    """
    source = next((one.source for one in manifest.edges if one.name == edge), None)
    producer = now.get(source, LOCAL) if source is not None else LOCAL
    return FrameRejection(error.field, error.reason, frozenset({producer})) if producer != LOCAL else None
