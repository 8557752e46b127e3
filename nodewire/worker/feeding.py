"""Bytes of any length into a worker, piece by piece; what they must hash to is seen before the last piece goes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable

from nodewire.errors import BadData, BadHash
from nodewire.kind import Worker
from nodewire.protocol.frame import Array, Frame, Meta


async def feed(
    worker: Worker, task: str, session: str, edge: str, pieces: Iterable[bytes], sha256: str | None, meta: Meta
) -> list[Frame[Array]]:
    """What the worker answers to the last piece; every frame has `meta`, and `end` in it. None of it touches the disk.

    Args:
        pieces: at least one, none empty; they are made in a thread, for they may be read and opened on the way.
        sha256: of all of them; None where nobody has said.

    Raises:
        BadHash, BadData: they are not what the hash says, or no bytes.
        NodewireError: as making a piece does, or the worker.
    """
    digest, iterator, seq = hashlib.sha256(), iter(pieces), 0
    piece: bytes | None = await asyncio.to_thread(next, iterator)
    answer: list[Frame[Array]] = []
    while piece is not None:
        following = await asyncio.to_thread(next, iterator, None)
        digest.update(piece)
        if not piece:
            raise BadData(edge, "no bytes")
        if following is None and sha256 is not None and digest.hexdigest() != sha256:
            raise BadHash(edge, "not what its hash says")
        frame = Frame(edge, seq, (Array("uint8", (len(piece),), piece),), {**meta, "end": following is None})
        answer = await worker.receive(task, session, frame)
        piece, seq = following, seq + 1
    return answer
