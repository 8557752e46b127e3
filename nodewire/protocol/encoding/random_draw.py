"""What everybody draws alike: random bytes from what they are drawn for, and the segments that are computed again.

nips/30-training-recipes.md, nips/33-training-audits.md.
"""

from __future__ import annotations

import hashlib

from nodewire.protocol.encoding import canonical

_TAG = b"nodewire/stream/1\x00"


def stream(size: int, *of: int | str) -> bytes:
    """The first `size` bytes of SHAKE-256(tag || canonical msgpack of the list `of`)."""
    return hashlib.shake_256(_TAG + canonical.encode(list(of))).digest(size)


def draw(seed: str, commitment: str, segments: int, fraction: float, most: int) -> tuple[int, ...]:
    """The segments of a commitment that are computed again, ascending: floor(segments x fraction), from 1 to `most`.

    They are the first of an order by 8-byte words of the stream. Both strings are hex.
    """
    many = min(most, segments, max(1, int(segments * fraction)))
    data = stream(8 * segments, "segments", seed, commitment)
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    return tuple(sorted(sorted(range(segments), key=lambda i: (words[i], i))[:many]))
