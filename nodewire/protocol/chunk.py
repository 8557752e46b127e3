"""What a provider commits to in one chunk: per task a salted leaf of every frame it put out. NIPS.md, "Commitments".

    leaf data = canonical [tensor key, [[dtype, shape, SHA-256 of the raw bytes] ...]]
    leaf i    = merkle.leaf(data, merkle.salt(secret, i))

The salt keeps a root from confirming a guessed prompt; it is revealed to verifiers, one leaf at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from nodewire.nostr.keys import Keys
from nodewire.protocol import canonical, merkle
from nodewire.protocol.commitment import ChunkRoot
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.manifest import Manifest


def chunk_of(manifest: Manifest, seq: int) -> int:
    """The chunk that pays for frame `seq` of an edge: 0 is a generation's prompt, a call is a chunk of its own."""
    if manifest.mode != "generate":
        return seq
    return 1 + (seq - 1) // manifest.chunk if seq else 0


def leaf_data(key: bytes, frame: Frame[Array]) -> bytes:
    """The bytes under the leaf of `frame`, whose tensor key is `key`."""
    arrays = [[a.dtype, list(a.shape), hashlib.sha256(a.data).digest()] for a in frame.tensors]
    return canonical.encode([key, arrays])


def salt_secret(keys: Keys, request: str, task: str, chunk: int, attempt: int) -> bytes:
    """The 32 bytes behind a chunk's salts: the provider's alone, and derived, so that they need not be kept."""
    of = canonical.encode([request, task, chunk, attempt])
    return canonical.tagged_hash("nodewire/salt-secret/1", keys.secret + of)


class Tally:
    """One chunk's leaves as they come. `secret` is 32 bytes that only the provider knows."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._leaves: list[bytes] = []

    def add(self, key: bytes, frame: Frame[Array]) -> None:
        self._leaves.append(merkle.leaf(leaf_data(key, frame), merkle.salt(self._secret, len(self._leaves))))

    def root(self) -> str:
        """The root as 64 hex digits."""
        return merkle.root(self._leaves).hex()


def claim(roots: Iterable[ChunkRoot]) -> str:
    """One root over a provider's tasks of a chunk, in the manifest's order: what its payment request names."""
    return merkle.root([root.leaf() for root in roots]).hex()
