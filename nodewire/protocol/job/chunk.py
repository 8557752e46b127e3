"""What a provider commits to in one chunk: per task a salted leaf of every frame it put out. nips/17-commitments.md.

    leaf data = canonical [request, edge, seq, [[dtype, shape, SHA-256 of the raw bytes, sketch] ...]]
    leaf i    = merkle.leaf(data, merkle.salt(secret, i))          in the order of (the manifest's edges, seq)
    root      = H("nodewire/work/1", canonical [author, request, task, chunk, attempt, Merkle root])

Its author is part of a root: who publishes another's as its own can never open it, whoever was first. The salts keep a
root from confirming a guessed prompt; the secret behind a chunk's salts is shown, with the leaves, to those who verify
the chunk (`Opening`). Sketches (`fingerprint`) are what they compare.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from nodewire.errors import BadInput
from nodewire.protocol.encoding import canonical, merkle
from nodewire.protocol.encoding.schema import Count, Hex32, Name, Schema
from nodewire.protocol.tensors import fingerprint
from nodewire.protocol.tensors.frame import MAX_TENSORS, Array, Frame, chunk_of_turn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodewire.nostr.keys import Keys
    from nodewire.protocol.committee.commitment import ChunkRoot
    from nodewire.protocol.model.manifest import Manifest

AHEAD = 2
"""Work on chunk n + 2 begins when chunk n is paid."""
MAX_LEAVES = 65_536
_HEAD_BYTES = 4_096
_SHOWN_BYTES = 8_192 + 1_024
"""A tensor's sketch, and all that stands around it."""


def chunk_of(manifest: Manifest, seq: int) -> int:
    """The chunk that pays for frame `seq` of an edge: 0 is a generation's prompt, a call is a chunk of its own."""
    return chunk_of_turn(seq, manifest.chunk) if manifest.mode == "generate" else seq


def first_seq(manifest: Manifest, chunk: int) -> int:
    """The first frame of an edge that belongs to `chunk`."""
    if manifest.mode != "generate":
        return chunk
    return 1 + (chunk - 1) * manifest.chunk if chunk else 0


class LeafTensor(Schema):
    """One tensor of a leaf."""

    dtype: str = Field(max_length=16)
    shape: tuple[Count, ...] = Field(max_length=8)
    sha256: Hex32
    """Of its raw bytes."""
    sketch: bytes = Field(max_length=8_192)


class Leaf(Schema):
    """One frame, as it was committed to."""

    edge: Name
    seq: Count
    tensors: tuple[LeafTensor, ...] = Field(max_length=MAX_TENSORS)

    def data(self, request: str) -> bytes:
        """The bytes under the leaf."""
        shown = [[t.dtype, list(t.shape), bytes.fromhex(t.sha256), t.sketch] for t in self.tensors]
        return canonical.encode([request, self.edge, self.seq, shown])


def leaf_of(manifest_digest: str, frame: Frame[Array]) -> Leaf:
    """What is committed of a frame."""
    return Leaf(
        edge=frame.edge,
        seq=frame.seq,
        tensors=tuple(
            LeafTensor(
                dtype=array.dtype,
                shape=array.shape,
                sha256=hashlib.sha256(array.data).hexdigest(),
                sketch=fingerprint.sketch(manifest_digest, frame.edge, index, array),
            )
            for index, array in enumerate(frame.tensors)
        ),
    )


def salt_secret(keys: Keys, request: str, task: str, chunk: int, attempt: int) -> bytes:
    """The 32 bytes behind a chunk's salts: the provider's alone, and derived, so that they need not be kept."""
    of = canonical.encode([request, task, chunk, attempt])
    return canonical.tagged_hash("nodewire/salt-secret/1", keys.secret + of)


class Opening(Schema):
    """All leaves of a chunk and the secret behind their salts: what only verifiers of the chunk are shown."""

    MAX_BYTES: ClassVar[int] = 4 * 2**20
    ERROR: ClassVar[type[BadInput]] = BadInput

    v: Literal[1] = 1
    author: Hex32
    """Who computed it."""
    request: Hex32
    task: Name
    chunk: Count
    attempt: Count
    secret: bytes = Field(min_length=32, max_length=32)
    leaves: tuple[Leaf, ...] = Field(max_length=MAX_LEAVES)

    def root(self) -> str:
        """The root as 64 hex digits."""
        hashed = [
            merkle.leaf(leaf.data(self.request), merkle.salt(self.secret, i)) for i, leaf in enumerate(self.leaves)
        ]
        of = [self.author, self.request, self.task, self.chunk, self.attempt, merkle.root(hashed)]
        return canonical.digest("nodewire/work/1", of)


def opening(
    keys: Keys, manifest: Manifest, leaves: Iterable[Leaf], *, request: str, task: str, chunk: int, attempt: int
) -> Opening:
    """A chunk's opening by whoever computed it, with the leaves in order."""
    order = {edge.name: i for i, edge in enumerate(manifest.edges)}
    return Opening(
        author=keys.public,
        request=request,
        task=task,
        chunk=chunk,
        attempt=attempt,
        secret=salt_secret(keys, request, task, chunk, attempt),
        leaves=tuple(sorted(leaves, key=lambda leaf: (order[leaf.edge], leaf.seq))),
    )


def most_bytes(manifest: Manifest, task: str) -> int:
    """What an opening of one of the task's chunks has at most: more would only take its reader's time."""
    frames = manifest.chunk if manifest.mode == "generate" else 1
    tensors = sum(max(1, len(edge.tensors)) for edge in manifest.outputs(task))
    return min(Opening.MAX_BYTES, _HEAD_BYTES + frames * tensors * _SHOWN_BYTES)


def claim(roots: Iterable[ChunkRoot]) -> str:
    """One root over a provider's tasks of a chunk, in the manifest's order: what its payment request names."""
    return merkle.root([root.leaf() for root in roots]).hex()
