"""Bytes of any length into a worker, piece by piece; what they must hash to is seen before the last piece goes."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from nodewire.errors import BadData, BadHash
from nodewire.protocol.tensors.frame import Array, Frame, Meta

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodewire.kind import TaskSession

HERE_BYTES = 1 << 18
"""What is read and opened in less time than another thread takes to begin with it."""


async def feed(
    session: TaskSession,
    edge: str,
    pieces: Iterable[bytes],
    sha256: str | None,
    meta: Meta,
    *,
    total: int | None = None,
) -> list[Frame[Array]]:
    """What the worker answers to the last piece; every frame has `meta`, and `end` in it. None of it touches the disk.

    Args:
        session: of a task that takes `edge`.
        edge: on which the frames go.
        pieces: at least one, none empty; they are made in a thread, for they may be read and opened on the way.
        sha256: of all of them; None where nobody has said.
        meta: said with every frame.
        total: about how many bytes they have, if that is known: a thread is for more than HERE_BYTES.

    Raises:
        BadHash, BadData: they are not what the hash says, or no bytes.
        NodewireError: as making a piece does, or the worker.

    """
    digest, iterator, seq = hashlib.sha256(), iter(pieces), 0
    is_small = total is not None and total <= HERE_BYTES

    async def made() -> bytes | None:
        return next(iterator, None) if is_small else await asyncio.to_thread(next, iterator, None)

    piece = await made()
    answer: list[Frame[Array]] = []
    while piece is not None:
        following = await made()
        digest.update(piece)
        if not piece:
            raise BadData(edge, "no bytes")
        if following is None and sha256 is not None and digest.hexdigest() != sha256:
            raise BadHash(edge, "not what its hash says")
        frame = Frame(edge, seq, (Array("uint8", (len(piece),), piece),), {**meta, "end": following is None})
        answer = await session.receive(frame)
        piece, seq = following, seq + 1
    return answer
