"""The file that people write, the same for all machines.

name = "home"
model = "llama"                  # each machine's copy of the model's folder; --model says another
customers = ["npub1..."]         # who may use it

[[nodes]]                        # in any order; layers are cut evenly, in this order, if no node says its own
npub = "npub1..."
address = "192.168.1.10:7447"
layers = "0-7"
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from nodewire.config import Address, File, Section
from nodewire.errors import BadConfig, BadInput
from nodewire.nostr.keys import from_npub, npub
from nodewire.protocol.encoding.schema import Hex32, Name
from nodewire.protocol.market.static_swarm import MAX_NODES, Swarm, SwarmNode
from nodewire.protocol.model import layer_ranges
from nodewire.protocol.speculation.frame_meta import MAX_LOOKAHEAD

if TYPE_CHECKING:
    from nodewire.protocol.model.layer_ranges import Border

MAX_CUSTOMERS = 256
LOOKAHEAD = 8


def _public(text: object) -> object:
    try:
        return from_npub(text) if isinstance(text, str) else text
    except BadInput as error:
        raise ValueError(f"{text[:80]!r} is {error.reason}" if isinstance(text, str) else error.reason) from error


def _layers(text: object) -> object:
    if not isinstance(text, str):
        return text
    first, _, last = text.strip().partition("-")
    try:
        return int(first), int(last or first)
    except ValueError as error:
        raise ValueError(f'{text[:40]!r} is not layers such as "0-7"') from error


Npub = Annotated[Hex32, BeforeValidator(_public)]
"""An npub, or 64 hex digits; a public key in hex."""


class NodeEntry(Section):
    npub: Npub
    """The machine's key."""
    address: Address
    """The host:port at which the other nodes reach it. It listens on that port."""
    layers: Annotated[tuple[int, int], BeforeValidator(_layers)] | None = None
    """The first and the last layer, both its own, such as "0-7": in all nodes, or in none. Empty: layers are shared
    evenly."""
    driver: bool = False
    """The driver: it has the model's ends, and chooses the tokens. If no node is it, the one with the first layers
    is."""
    name: Name | Literal[""] = ""
    """The name that people see."""

    @property
    def called(self) -> str:
        """For people."""
        return self.name or npub(self.npub)[:12]


class SwarmFile(File):
    name: Name
    """The name of the swarm, and of its model."""
    model: Path | None = None
    """The model's folder or GGUF file; each machine has its own copy. `--model` names another."""
    manifest: Hex32 | None = None
    """The digest that the cut model must have, as `nodewire swarm check` prints it. Empty: all nodes must agree."""
    context: int | None = Field(default=None, ge=2, le=2**24)
    """The positions of a session. Empty: the model's own, at most 8,192."""
    slots: int = Field(default=4, ge=1, le=64)
    """Generations at a time."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """The dtype of the arithmetic. Empty: bfloat16 if most weights are stored so or in few bits, else float32."""
    lookahead: int = Field(default=LOOKAHEAD, ge=1, le=MAX_LOOKAHEAD)
    """The distance that generations may run ahead by guess."""
    nodes: tuple[NodeEntry, ...] = Field(min_length=1, max_length=MAX_NODES)
    """The machines."""
    customers: tuple[Npub, ...] = Field(min_length=1, max_length=MAX_CUSTOMERS)
    """Keys that may ask. No other key gets a link."""

    @classmethod
    def read(cls, path: Path, split: str = "") -> Self:
        """The file at `path`, with the layers that `split` gives its nodes, such as "0-7,8-15".

        Raises:
            BadConfig: it cannot be read, or a field is wrong.
            BadInput: `split` is no split, or not for these nodes.

        """
        found = cls.load(path)
        return found.cut_at(layer_ranges.parse(split)) if split else found

    @model_validator(mode="after")
    def _is_one_ring(self) -> Self:
        publics = [node.npub for node in self.nodes]
        if twice := next((one for one in publics if publics.count(one) > 1), None):
            raise ValueError(f"nodes: two have the npub {npub(twice)}: each machine needs a key of its own")
        addresses = [node.address for node in self.nodes]
        if same := next((one for one in addresses if addresses.count(one) > 1), None):
            raise ValueError(f"nodes: two have the address {same}")
        if both := next((one for one in self.customers if one in publics), None):
            raise ValueError(f"customers: {npub(both)} is a node's key: who asks needs one of their own")
        if sum(node.driver for node in self.nodes) > 1:
            raise ValueError("nodes: more than one is the driver")
        if any(node.layers is None for node in self.nodes) and any(node.layers for node in self.nodes):
            raise ValueError("nodes: some say their layers and some do not: say all of them, or none")
        try:
            layer_ranges.check([node.layers for node in self.ring if node.layers is not None])
        except BadInput as error:
            raise ValueError(f"nodes: layers: {error.reason}") from error
        return self

    @property
    def ring(self) -> tuple[NodeEntry, ...]:
        """The nodes in the order of their layers; as they stand in the file if they say none."""
        return tuple(sorted(self.nodes, key=lambda node: node.layers or (0, 0)))

    @property
    def swarm(self) -> Swarm:
        """What all members must agree on."""
        ring = self.ring
        driver = next((node for node in ring if node.driver), ring[0])
        return Swarm(
            name=self.name,
            manifest=self.manifest,
            context=self.context,
            slots=self.slots,
            dtype=self.dtype,
            lookahead=self.lookahead,
            driver=driver.npub,
            nodes=tuple(SwarmNode(public=node.npub, layers=node.layers) for node in ring),
        )

    def node(self, public: str) -> NodeEntry | None:
        return next((node for node in self.nodes if node.npub == public), None)

    def cut_at(self, split: tuple[Border, ...]) -> Self:
        """The same, with these layers for its nodes in the ring's order. Raises BadInput: it says others itself."""
        ring = self.ring
        if len(split) != len(ring):
            stages = "1 stage" if len(split) == 1 else f"{len(split)} stages"
            raise BadInput("--split", f"{stages} for the {len(ring)} nodes of the file")
        for node, layers in zip(ring, split, strict=True):
            if node.layers not in (None, layers):
                said = layer_ranges.written([node.layers]) if node.layers else ""
                raise BadInput(
                    "--split", f"{node.called} has layers {said} in the file, not {layer_ranges.written([layers])}"
                )
        nodes = tuple(node.model_copy(update={"layers": layers}) for node, layers in zip(ring, split, strict=True))
        return self.model_copy(update={"nodes": nodes})

    def check_member(self, public: str, path: Path) -> NodeEntry:
        """The node with this key. Raises BadConfig: the file names none."""
        if (node := self.node(public)) is None:
            raise BadConfig(
                str(path), f"names no node {npub(public)}, which is this machine's key: add it to [[nodes]]"
            )
        return node
