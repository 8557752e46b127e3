"""What training's workers say and hear beside tensors: bytes, numbers, losses in millionths.

Bytes go in frames of at most 1 MiB; `meta` says `end` in the last.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import accumulate
from typing import overload

import torch

from nodewire.errors import BadFrame, BadInput, TooLarge
from nodewire.protocol.tensors.frame import Frame, Meta
from nodewire.training.engine.state import StateUnpacker, Types

PIECE_BYTES = 1 << 20
HEADER_BYTES = 1 << 20
"""More than the header of any model's safetensors has."""
MICRO = 1_000_000
"""Losses travel in millionths."""
MOST_MICRO = 2**53 - 1

Tensors = Frame[torch.Tensor]


class IncomingBytes:
    """Bytes that come in pieces; never more than were expected are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._whole = BytesIO()

    def feed(self, frame: Tensors) -> bytes | None:
        """All bytes once the last piece is here. Raises BadFrame, TooLarge."""
        piece = _bytes_of(frame)
        if not frame.seq:  # from the start, whatever was broken off
            self._whole = BytesIO()
        if self._whole.tell() + len(piece) > self._most:
            raise TooLarge(frame.edge, f"more than {self._most} bytes")
        self._whole.write(piece)
        if not frame.meta.get("end"):
            return None
        whole, self._whole = self._whole, BytesIO()
        return whole.getvalue()  # not copied, but handed over


class IncomingTensors:
    """Tensors that come as a safetensors file in pieces: each piece goes straight to where it stays."""

    def __init__(self, expected: Types, most: int, field: str) -> None:
        self._expected, self._most, self._field = expected, most, field
        self._coming: StateUnpacker | None = None
        self._size = 0

    def feed(self, frame: Tensors) -> dict[str, torch.Tensor] | None:
        """The tensors once the last piece is here.

        Raises:
            BadFrame: no bytes, or none from the beginning.
            TooLarge: more bytes than were expected, or a longer header.
            BadData: not the tensors that were expected, as `state.unpack`.

        """
        piece = _bytes_of(frame)
        if not frame.seq:  # from the start, whatever was broken off
            self._coming, self._size = None, 0  # before others take its room
            self._coming = StateUnpacker(self._expected, self._most, field=self._field)
        coming, self._coming = self._coming, None  # whatever is refused is let go of
        if coming is None:
            raise BadFrame(frame.edge, "not from its beginning")
        self._size += len(piece)
        if self._size > self._most:
            raise TooLarge(frame.edge, f"more than {self._most} bytes")
        coming.feed(piece)
        if frame.meta.get("end"):
            return coming.whole()
        self._coming = coming
        return None


def _bytes_of(frame: Tensors) -> memoryview:
    if len(frame.tensors) != 1 or frame.tensors[0].dtype != torch.uint8:
        raise BadFrame(frame.edge, "not one tensor of bytes")
    return frame.tensors[0].numpy().data.cast("B")


class Pieces(Sequence[Tensors]):
    """Frames that are made when they are sent: of bytes where they stand, and what is said before them.

    Each has PIECE_BYTES. What the bytes belong to must stay as it is until then.
    """

    def __init__(
        self, edge: str, parts: Iterable[bytes | memoryview], *, after: Sequence[Tensors] = (), meta: Meta | None = None
    ) -> None:
        self._edge, self._parts, self._after, self._meta = edge, list(parts), after, meta or {}
        self._starts = list(accumulate(map(len, self._parts), initial=0))

    def __len__(self) -> int:
        return len(self._after) + max(1, -(-self._starts[-1] // PIECE_BYTES))

    @overload
    def __getitem__(self, at: int) -> Tensors: ...

    @overload
    def __getitem__(self, at: slice) -> list[Tensors]: ...

    def __getitem__(self, at: int | slice) -> Tensors | list[Tensors]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        at = at + len(self) if at < 0 else at
        if not 0 <= at < len(self):
            raise IndexError(at)
        if at < len(self._after):
            return self._after[at]
        seq = at - len(self._after)
        piece = self._piece(seq * PIECE_BYTES, min(self._starts[-1], (seq + 1) * PIECE_BYTES))
        return Frame(self._edge, seq, (piece,), {**self._meta, "end": at == len(self) - 1})

    def _piece(self, start: int, stop: int) -> torch.Tensor:
        piece = torch.empty(stop - start, dtype=torch.uint8)
        filled = 0
        for part in range(bisect_right(self._starts, start) - 1, len(self._parts)):
            if filled == stop - start:
                break
            first = start + filled - self._starts[part]
            data = memoryview(self._parts[part])[first : first + stop - start - filled]
            piece.numpy()[filled : filled + len(data)] = data
            filled += len(data)
        return piece


def pieces(edge: str, whole: bytes) -> Pieces:
    return Pieces(edge, [whole])


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
