"""What a customer orders, whatever plan is drawn for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.kind import JobKind, Params
    from nodewire.protocol.model.manifest import Manifest
    from nodewire.protocol.tensors.frame import Array, Frame


@dataclass(frozen=True, slots=True)
class JobOrder:
    """A job of a model: who serves such jobs, the model's address and manifest, parameters, and frames."""

    kind: JobKind
    address: str
    manifest: Manifest
    params: Params
    inputs: Sequence[Frame[Array]]
    """For the manifest's edges from the customer."""
