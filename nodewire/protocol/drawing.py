"""Which segments of a commitment are computed again. NIPS.md, "Commitments and audits"."""

from __future__ import annotations

import hashlib

from nodewire.protocol import canonical


def draw(seed: str, commitment: str, segments: int, fraction: float, least: int = 1) -> tuple[int, ...]:
    """floor(segments x fraction) of a commitment's segments, at least `least`: the first of an order by random words.

    Both strings are hex. The words are those of NIPS.md, "What is drawn".
    """
    many = min(segments, max(least, int(segments * fraction)))
    of = canonical.encode(["segments", seed, commitment])
    stream = hashlib.shake_256(b"nodewire/stream/1\x00" + of).digest(8 * segments)
    words = [int.from_bytes(stream[at : at + 8], "little") for at in range(0, len(stream), 8)]
    return tuple(sorted(sorted(range(segments), key=lambda i: (words[i], i))[:many]))
