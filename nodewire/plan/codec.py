"""Which edges of a plan are narrowed, where a customer wishes it for a whole job. Pure.

A wish names a codec for every edge between two nodes, or leaves it open (`auto`): then each edge has the codec, if any,
by which its frames come enough sooner. What that is follows from how many bytes they have, how many bytes per
millisecond the link carries, how long it takes anyway, and what narrowing and widening cost:

    time = frames * latency + bytes * left / bandwidth + frames * per_frame + bytes * per_byte

`left` is the part of the bytes that a codec leaves. `assign/2` does not choose: the outcome stands in the terms, from
which anybody derives the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nodewire.errors import BadInput
from nodewire.plan.assign import LINK_BYTES_PER_MS, link_us
from nodewire.protocol.job.plan import LOCAL, Plan
from nodewire.protocol.market.snapshot import Node, Snapshot
from nodewire.protocol.model.edge_codec import CODECS, Codec, can_narrow, sent_as
from nodewire.protocol.tensors.frame import BLOCK, bytes_of

if TYPE_CHECKING:
    from nodewire.protocol.model.manifest import Edge, Manifest

WORTH_PERCENT = 10
"""Of a time: what it must become shorter by, for rounding more."""
CHARS_PER_TOKEN = 4
"""About: whoever has no tokenizer counts so."""
EdgeCodec = Codec | Literal["auto"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What narrowing and widening a frame takes: in all, and for each MiB of its own dtype."""

    frame_ns: int
    mebibyte_ns: int


COSTS: dict[Codec, Cost] = {"bf16": Cost(20_000, 100_000), "int8": Cost(120_000, 1_000_000)}
"""By `python -m bench.verification.codecs`, rounded up."""


@dataclass(frozen=True, slots=True)
class Link:
    """What is known of the way from one node to another, measured or predicted."""

    latency_us: int
    bytes_per_ms: int


Predict = Callable[[Node | None, Node | None], Link]
"""Of the way from one node to another; None is the customer, which has no place in the snapshot. At most one is."""


@dataclass(frozen=True, slots=True)
class Wish:
    """`positions` are those of the job's first frame on an edge; `frames` of one position each follow."""

    codec: EdgeCodec
    positions: int = 1
    frames: int = 0

    def __post_init__(self) -> None:
        """Raises BadInput: no such codec."""
        if self.codec not in (*CODECS, "auto"):
            raise BadInput("edge_codec", f"{str(self.codec)[:40]!r} is neither {', '.join(CODECS)} nor auto")


def predicted(a: Node | None, b: Node | None) -> Link:
    """What `assign/2` counts with: the latency by coordinates, and one bandwidth for all.

    The customer is taken to be beside the other one.
    """
    ends = [node for node in (a, b) if node is not None]
    return Link(link_us(ends[0], ends[-1]), LINK_BYTES_PER_MS)


def codecs(
    plan: Plan, manifest: Manifest, snapshot: Snapshot, wish: Wish, predict: Predict = predicted
) -> dict[str, Codec]:
    """The codecs, by edge, that a wish means for a plan: of edges whose two ends are on different nodes."""
    place = {one.task: one.provider for one in plan.tasks}
    inner = manifest.inner_edges
    between = [edge for edge in inner if place[edge.source] != place[edge.target]]
    if wish.codec != "auto":
        return {edge.name: wish.codec for edge in between if can_narrow(edge, wish.codec)}
    nodes = {node.pubkey: node for node in snapshot.nodes}
    found: dict[str, Codec] = {}
    for edge in between:
        source, target = (nodes[place[task]] if place[task] != LOCAL else None for task in (edge.source, edge.target))
        codec = best(edge, wish, predict(source, target))
        if codec is not None:
            found[edge.name] = codec
    return found


def best(edge: Edge, wish: Wish, link: Link) -> Codec | None:
    """The gentlest codec that nothing narrower is much faster than; None is the edge's own dtype."""
    chosen: Codec | None = None
    least_ns = time_ns(edge, wish, link, None)
    for codec in CODECS:
        if can_narrow(edge, codec):
            takes_ns = time_ns(edge, wish, link, codec)
            if takes_ns * 100 <= least_ns * (100 - WORTH_PERCENT):
                chosen, least_ns = codec, takes_ns
    return chosen


def time_ns(edge: Edge, wish: Wish, link: Link, codec: Codec | None) -> int:
    """How long a job's frames on an edge take, one after the other."""
    first = wish.positions if any(isinstance(n, str) for tensor in edge.tensors for n in tensor.shape) else 1
    own_bytes = edge.bytes_per_position * (first + wish.frames)
    frames = 1 + wish.frames
    sent_bytes, takes_ns = own_bytes, frames * link.latency_us * 1_000
    if codec is not None:
        sent_bytes = own_bytes * _left_ppm(edge, codec) // 1_000_000
        takes_ns += frames * COSTS[codec].frame_ns + own_bytes * COSTS[codec].mebibyte_ns // 2**20
    return takes_ns + sent_bytes * 1_000_000 // link.bytes_per_ms


def _left_ppm(edge: Edge, codec: Codec) -> int:
    """The part of an edge's bytes that a codec leaves, by one position of each of its tensors."""
    own = sum(bytes_of(tensor.dtype, _row(tensor.shape)) for tensor in edge.tensors)
    sent = sum(bytes_of(sent_as(tensor.dtype, codec), _row(tensor.shape)) for tensor in edge.tensors)
    return sent * 1_000_000 // max(own, 1)


def _row(shape: tuple[int | str, ...]) -> tuple[int, ...]:
    """A shape with 1 for what is not fixed, but the last dimension a whole block: it is seldom less."""
    sizes = [n if isinstance(n, int) else 1 for n in shape]
    if shape and isinstance(shape[-1], str):
        sizes[-1] = BLOCK
    return tuple(sizes)
