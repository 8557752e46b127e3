"""A swarm by a file: what its members must agree on, and cite in place of a committee. nips/38-swarms.md.

Addresses and the list of customers are no part of it: they are each operator's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from nodewire.errors import BadInput
from nodewire.protocol.encoding.schema import Count, Hex32, Name, Schema
from nodewire.protocol.speculation.frame_meta import MAX_LOOKAHEAD

if TYPE_CHECKING:
    from nodewire.protocol.model.layer_ranges import Border

MAX_NODES = 64


class SwarmNode(Schema):
    """`layers` are the first and the last; None in all nodes: as even as can be."""

    public: Hex32
    layers: tuple[Count, Count] | None = None


class Swarm(Schema):
    TAG: ClassVar[str] = "nodewire/swarm/1"
    MAX_BYTES: ClassVar[int] = 16_384
    ERROR: ClassVar[type[BadInput]] = BadInput

    v: Literal[1] = 1
    name: Name
    manifest: Hex32 | None = None
    """The digest that the cut model must have, if the file says it."""
    context: int | None = Field(default=None, ge=2, le=2**24)
    slots: int = Field(default=4, ge=1, le=64)
    dtype: Literal["float32", "bfloat16"] | None = None
    lookahead: int = Field(default=1, ge=1, le=MAX_LOOKAHEAD)
    """The most that a generation may run ahead by guess."""
    driver: Hex32
    """Which node drives."""
    nodes: tuple[SwarmNode, ...] = Field(min_length=1, max_length=MAX_NODES)
    """In the ring's order."""

    @property
    def address(self) -> str:
        """Of its manifest, where a market's has the author's key."""
        return f"38840:{self.digest()}:{self.name}"

    @property
    def borders(self) -> tuple[Border, ...]:
        """The layers of each node; none if they are to be even."""
        return tuple(node.layers for node in self.nodes if node.layers is not None)

    def places(self) -> dict[str, str]:
        """By task of the cut model, the node that computes it."""
        stages = {f"stage.{index}": node.public for index, node in enumerate(self.nodes)}
        return {"driver": self.driver, **stages}


class RollCall(Schema):
    """What a node says of itself to who asks: the file that it goes by, and what its copy of the model was cut to."""

    TAG: ClassVar[str] = "nodewire/roll-call/1"
    MAX_BYTES: ClassVar[int] = 4_096

    v: Literal[1] = 1
    swarm: Hex32
    manifest: Hex32
