"""The tokens that a decoder's driver chose, held against the logits of a judge. nips/19-judging.md.

A judge gives its own driver the tokens that the provider committed to (`token_list`). The driver says each token that
its logits leave open, and else its own choice. So its leaves are the provider's, unless a token cannot be excused. The
driver is given a verifier's tokens, too, and marks those that it would have excused after what was said before them.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from nodewire.protocol.model.manifest import CUSTOMER, Manifest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from nodewire.protocol.job.chunk import Leaf, Opening
    from nodewire.protocol.tensors.frame import Array, Frame

_TOKEN_BYTES = 8


def tokens_edge(manifest: Manifest, task: str) -> str | None:
    """The edge on which the task tells its customer the tokens that it chose; None if it chooses none."""
    if manifest.task(task).engine != "decoder.driver":
        return None
    return next((edge.name for edge in manifest.outputs(task) if edge.target == CUSTOMER), None)


def of_leaves(leaves: Iterable[Leaf], edge: str) -> dict[int, int]:
    """By number, the tokens that leaves of an edge were made of. A leaf that has no token is left out."""
    found = {}
    for leaf in leaves:
        if leaf.edge == edge and len(leaf.tensors) == 1:
            (one,) = leaf.tensors
            is_whole = len(one.sketch) == _TOKEN_BYTES and hashlib.sha256(one.sketch).hexdigest() == one.sha256
            if one.dtype == "int64" and is_whole:
                found[leaf.seq] = int.from_bytes(one.sketch, "little", signed=True)
    return found


def of_frames(frames: Iterable[Frame[Array]]) -> dict[int, int]:
    """By number, the tokens in frames. A frame that has no token is left out."""
    found = {}
    for frame in frames:
        if len(frame.tensors) == 1 and (one := frame.tensors[0]).dtype == "int64" and one.nbytes == _TOKEN_BYTES:
            found[frame.seq] = int.from_bytes(one.data, "little", signed=True)
    return found


def spared(manifest: Manifest, task: str, checked: Opening, mine: Opening, excused: Collection[int]) -> Opening:
    """The part of a verifier's opening that the verifier answers for; the rest is taken from `mine`.

    `mine` is the judge's own opening, which says the provider's tokens. The verifier chose for itself. Where its first
    token that differs is excused, the inputs after it follow the provider's token and not the verifier's.
    """
    edge = tokens_edge(manifest, task)
    if edge is None:
        return checked
    own, its = of_leaves(mine.leaves, edge), of_leaves(checked.leaves, edge)
    first = next((seq for seq in sorted(own) if its.get(seq) != own[seq]), None)
    if first is None or first not in excused:
        return checked

    def follows(leaf: Leaf) -> bool:
        return leaf.seq >= first if leaf.edge == edge else leaf.seq > first

    kept = [leaf for leaf in checked.leaves if not follows(leaf)]
    taken = [leaf for leaf in mine.leaves if follows(leaf)]
    order = {one.name: i for i, one in enumerate(manifest.edges)}
    leaves = tuple(sorted((*kept, *taken), key=lambda leaf: (order.get(leaf.edge, -1), leaf.seq)))
    return checked.model_copy(update={"leaves": leaves})
