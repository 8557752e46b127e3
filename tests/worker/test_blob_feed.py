"""Bytes into a session, piece by piece: it gets the last one only of what hashes to what was said."""

from __future__ import annotations

import hashlib

import pytest

from nodewire.errors import BadData, BadHash
from nodewire.worker.blob_feed import feed

PIECES = [b"one", b"two", b"three"]
SHA256 = hashlib.sha256(b"".join(PIECES)).hexdigest()


class Listening:
    """A session that answers every frame with itself."""

    def __init__(self) -> None:
        self.heard = []

    async def receive(self, frame):
        self.heard.append((frame.edge, frame.seq, bytes(frame.tensors[0].data), frame.meta))
        return [frame]


async def test_all_pieces_come_in_order_and_the_last_one_says_so():
    session = Listening()
    (answer,) = await feed(session, "theta", iter(PIECES), SHA256, {"round": 3})
    assert answer.seq == 2
    assert session.heard == [("theta", seq, piece, {"round": 3, "end": seq == 2}) for seq, piece in enumerate(PIECES)]


async def test_of_what_is_something_else_the_last_piece_never_comes():
    session = Listening()
    with pytest.raises(BadHash, match="theta"):
        await feed(session, "theta", iter([*PIECES[:2], b"other"]), SHA256, {})
    assert [piece for _, _, piece, _ in session.heard] == PIECES[:2]


async def test_nothing_at_all_is_no_data():
    session = Listening()
    with pytest.raises(BadData, match="shard"):
        await feed(session, "shard", iter([b""]), None, {})
    assert not session.heard
