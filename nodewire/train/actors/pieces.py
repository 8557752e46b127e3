"""What training's workers say and hear beside tensors: bytes in frames of at most 1 MiB, `meta` says `end` in the last;
numbers; losses in millionths."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nodewire.errors import BadFrame, BadInput, TooLarge
from nodewire.protocol.frame import Frame

PIECE_BYTES = 1 << 20
HEADER_BYTES = 1 << 20
"""More than the header of any model's safetensors has."""
MICRO = 1_000_000
"""Losses travel in millionths."""
MOST_MICRO = 2**53 - 1

Tensors = Frame[torch.Tensor]


class Incoming:
    """Bytes that come in pieces; never more than were expected are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._whole = bytearray()

    def take(self, frame: Tensors) -> bytes | None:
        """All bytes once the last piece is here. Raises BadFrame, TooLarge."""
        if len(frame.tensors) != 1 or frame.tensors[0].dtype != torch.uint8:
            raise BadFrame(frame.edge, "not one tensor of bytes")
        (piece,) = frame.tensors
        if not frame.seq:  # from the start, whatever was broken off
            self._whole.clear()
        if len(self._whole) + piece.numel() > self._most:
            raise TooLarge(frame.edge, f"more than {self._most} bytes")
        self._whole += piece.numpy().data
        if not frame.meta.get("end"):
            return None
        whole, self._whole = bytes(self._whole), bytearray()
        return whole


def pieces(edge: str, whole: bytes) -> Iterator[Tensors]:
    for seq, at in enumerate(range(0, max(1, len(whole)), PIECE_BYTES)):
        piece = torch.frombuffer(bytearray(whole[at : at + PIECE_BYTES]) or bytearray(1), dtype=torch.uint8)
        yield Frame(edge, seq, (piece[: len(whole) - at],), {"end": at + PIECE_BYTES >= len(whole)})


def number(frame: Tensors, name: str) -> int:
    value = frame.meta.get(name)
    if not isinstance(value, int):
        raise BadInput(name, "not a number")
    return value


def digest(frame: Tensors, name: str) -> bytes | None:
    """The bytes of a hash that `meta` has as hex; None if it is empty or missing."""
    value = frame.meta.get(name)
    return bytes.fromhex(value) if isinstance(value, str) and value else None


def micro(loss: float) -> int:
    """Millionths; a loss that is not finite, or negative, is the end of what can be said."""
    return min(MOST_MICRO, max(0, round(loss * MICRO))) if loss == loss and abs(loss) != float("inf") else MOST_MICRO
