"""What a node is told of a job when it opens its mailbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodewire.errors import BadInput, NodewireError

if TYPE_CHECKING:
    from nodewire.wire.job.edge_window import Route, Tape

GRACE_S = 10.0
"""In which a lost neighbour must be heard of again, or the job fails. nips/23-recovery.md allows no more."""
PROVIDER_GRACE_S = 5.0
"""A provider's, the least that it allows: its slot is free the sooner."""

OnLost = Callable[[str, NodewireError], None]
"""Told a member's public key and what happened to it, at once."""


@dataclass(frozen=True, slots=True)
class JobChannelSpec:
    """One node's view of a job's channel: its edges, and what becomes of a lost member.

    Raises BadInput: `request` is no event's id.
    """

    request: str
    """The id of the job's request, 64 hex digits."""
    routes: Mapping[str, Route]
    """All of the job's edges, by name."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """The most bytes of one frame, by edge; 64 MiB where it says nothing."""
    on_lost: OnLost | None = None
    """With it a lost member does not end the job: it is called at once."""
    grace_s: float = GRACE_S
    """How long a neighbour that was lost may be silent in the job."""
    tape: Tape | None = None
    """Keeps what is put, so that it can be sent again to a consumer that lacks it."""
    keep_inputs: bool = False
    """Whether it keeps what comes from other nodes, too."""

    def __post_init__(self) -> None:
        if len(self.request) != 64 or set(self.request) - set("0123456789abcdef"):
            raise BadInput("request", "not 64 lowercase hex digits")
