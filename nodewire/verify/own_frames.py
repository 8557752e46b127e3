"""A provider's own frames: pulled from it, held against the hashes that it committed to, and sketched anew.

The provider need not be believed, since each frame must hash to its leaf. nips/19-judging.md.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nodewire.errors import BadHash, NotFound, TooLarge
from nodewire.protocol.job.chunk import Leaf, Opening, leaf_of
from nodewire.protocol.tensors.frame import ITEM_BYTES, bytes_of
from nodewire.protocol.verification.statement import tensors_of
from nodewire.wire.evidence.pull import Want, pull

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.protocol.model.manifest import Manifest
    from nodewire.protocol.verification.sample import Sample
    from nodewire.wire.node import Node

MAX_BYTES = 2**30
"""Of one chunk's frames."""
_HEADER_BYTES = 4_096
"""The most that stands beside a frame's tensors."""


async def shown_leaves(
    node: Node, addresses: Sequence[str], sample: Sample, manifest: Manifest, opening: Opening
) -> tuple[Leaf, ...]:
    """The leaves of the provider's own frames of the sampled chunk, in the opening's order, one held at a time.

    Raises:
        TooLarge: the opening has more than 1 GiB of tensors, or more bytes come than it has.
        BadHash: a frame is not the one that was committed to.
        NotFound: not all frames are shown.
        NotAllowed, Busy, LinkLost ...: the provider refuses, or cannot be reached.

    """
    committed = {(leaf.edge, leaf.seq): leaf for leaf in opening.leaves}
    expected = sum(_bytes_of(leaf) for leaf in opening.leaves)
    if expected > MAX_BYTES:
        raise TooLarge("frames", f"the opening has {expected} bytes of tensors, at most {MAX_BYTES} are pulled")
    edges = tuple(dict.fromkeys(leaf.edge for leaf in opening.leaves))
    want = Want(
        what="frames",
        request=sample.request,
        task=sample.task,
        edges=edges,
        attempt=sample.attempt,
        first=sample.chunk,
        last=sample.chunk,
    )
    largest = max((_bytes_of(leaf) for leaf in opening.leaves), default=0)
    shown: dict[tuple[str, int], Leaf] = {}
    pulled = pull(node, sample.provider, addresses, want, max_bytes=expected, max_frame_bytes=largest + _HEADER_BYTES)
    async for _, frame in pulled:
        place = frame.edge, frame.seq
        if place not in committed or place in shown:
            raise BadHash(frame.edge, f"frame {frame.seq} was not committed to")
        leaf = await asyncio.to_thread(leaf_of, manifest.digest(), frame)
        if tensors_of(leaf) != tensors_of(committed[place]):
            raise BadHash(frame.edge, f"frame {frame.seq} is not the one that was committed to")
        shown[place] = leaf
    if len(shown) != len(committed):
        raise NotFound("frames", f"{len(shown)} of {len(committed)} that were committed to are shown")
    return tuple(shown[leaf.edge, leaf.seq] for leaf in opening.leaves)


def _bytes_of(leaf: Leaf) -> int:
    return sum(bytes_of(one.dtype, one.shape) for one in leaf.tensors if one.dtype in ITEM_BYTES)
