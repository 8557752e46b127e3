"""What a committee certifies about an epoch: the body that votes name by digest and that the beacon is drawn over."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from nodewire.errors import BadInput, BadQuorum
from nodewire.protocol.committee.committee import MAX_ORACLES
from nodewire.protocol.encoding.schema import Hex32, Schema
from nodewire.protocol.encoding.tags import MAX_EPOCH


class Body(Schema):
    """`digest()` is what is voted for, what beats cite as `last`, and the beacon's input."""

    TAG: ClassVar[str] = "nodewire/body/1"
    MAX_BYTES: ClassVar[int] = 16_384
    ERROR: ClassVar[type[BadInput]] = BadQuorum

    v: Literal[1] = 1
    committee: Hex32
    epoch: int = Field(ge=0, le=MAX_EPOCH)
    snapshot: Hex32
    """SHA-256 of the snapshot blob."""
    commitments: Hex32
    """Merkle root over the sorted ids (raw bytes, unsalted) of the commitments that f+1 cited inventories list."""
    inventories: tuple[Hex32, ...] = Field(min_length=1, max_length=MAX_ORACLES)
    """Event ids of at least 2f+1 inventories of distinct oracles, sorted."""
    previous: Hex32
    """Digest of the body certified before this one; the committee's digest for the first."""
    is_crowded: bool = False
    """Of nodes without a bond only the beats that the leader's inventory lists count; left out where it is false."""

    @model_serializer(mode="wrap")
    def _without_its_default(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said: dict[str, Any] = serialize(self)
        if not self.is_crowded:
            del said["is_crowded"]
        return said

    @model_validator(mode="after")
    def _is_sorted(self) -> Self:
        if any(a >= b for a, b in pairwise(self.inventories)):
            raise ValueError("inventories: not sorted, or one stands twice")
        return self
