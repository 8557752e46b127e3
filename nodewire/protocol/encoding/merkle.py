"""Merkle trees of tagged hashes: over an epoch's commitments, a provider's chunks, a chunk's salted tensors.

    leaf(data, salt) = H("nodewire/leaf/1", salt || data)          salt is empty or 32 bytes
    node(l, r)       = H("nodewire/node/1", l || r)                an odd node moves up unchanged
    root             = H("nodewire/root/1", count as 8 bytes big-endian || top)      top is empty for no leaves

where H is the tagged SHA-256 of `nodewire.protocol.encoding.canonical`. The root binds the number of leaves, so a
proof's shape is fixed by (count, index) and no inner node can be passed off as a leaf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import BadHash, BadInput, TooLarge
from nodewire.protocol.encoding.canonical import tagged_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_LEAVES = 1 << 20


def leaf(data: bytes, salt: bytes = b"") -> bytes:
    """The hash of one leaf. Raises BadInput for a salt that is neither empty nor 32 bytes."""
    if len(salt) not in (0, 32):
        raise BadInput("salt", f"{len(salt)} bytes, expected none or 32")
    return tagged_hash("nodewire/leaf/1", salt + data)


def salt(secret: bytes, index: int) -> bytes:
    """The salt of leaf `index` in a tree whose producer keeps the 32-byte `secret`; revealing one reveals no other."""
    return tagged_hash("nodewire/salt/1", secret + index.to_bytes(8, "big"))


def root(leaves: Sequence[bytes]) -> bytes:
    """The root over hashed leaves, in order. Raises TooLarge above 2**20 leaves."""
    return _seal(len(leaves), _levels(leaves)[-1][0] if leaves else b"")


def proof(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """The siblings of leaf `index` from the bottom up. Raises BadInput if there is no such leaf."""
    if not 0 <= index < len(leaves):
        raise BadInput("index", f"{index} of {len(leaves)} leaves")
    path = []
    for level in _levels(leaves)[:-1]:
        if index ^ 1 < len(level):
            path.append(level[index ^ 1])
        index >>= 1
    return tuple(path)


def verify(root_: bytes, leaf_: bytes, index: int, count: int, path: Sequence[bytes]) -> None:
    """Check that `leaf_` is the leaf `index` of `count` under `root_`.

    Raises:
        BadInput: no such index, or a proof of another length than (count, index) demand.
        BadHash: it leads to another root.

    """
    if not 0 <= index < count <= MAX_LEAVES:
        raise BadInput("index", f"{index} of {count} leaves")
    siblings, node, width = list(path), leaf_, count
    while width > 1:
        if index ^ 1 < width:
            if not siblings:
                raise BadInput("proof", "too short")
            other = siblings.pop(0)
            node = _node(other, node) if index & 1 else _node(node, other)
        index, width = index >> 1, (width + 1) >> 1
    if siblings:
        raise BadInput("proof", "too long")
    if _seal(count, node) != root_:
        raise BadHash("proof", "leads to another root")


def _levels(leaves: Sequence[bytes]) -> list[list[bytes]]:
    if len(leaves) > MAX_LEAVES:
        raise TooLarge("leaves", f"{len(leaves)}, at most {MAX_LEAVES}")
    levels = [list(leaves)]
    while len(below := levels[-1]) > 1:
        level = [_node(below[i], below[i + 1]) for i in range(0, len(below) - 1, 2)]
        levels.append(level + below[len(level) * 2 :])
    return levels


def _node(left: bytes, right: bytes) -> bytes:
    return tagged_hash("nodewire/node/1", left + right)


def _seal(count: int, top: bytes) -> bytes:
    return tagged_hash("nodewire/root/1", count.to_bytes(8, "big") + top)
