"""What a job of a generation puts out, as its customer reads it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nodewire.customer.likely import Likely, likely_of
from nodewire.errors import BadFrame
from nodewire.protocol.frame import Array, Frame


@dataclass(frozen=True, slots=True)
class Piece:
    """One step of a generation: its token ids and the text that became printable with them.

    `position` is the first id's in the session: the prompt's tokens are those before it, by the driver's word. So are
    `likely`, where `logprobs` was asked for: the id itself first, then those that the model found likeliest.
    """

    text: str
    ids: tuple[int, ...]
    end: bool
    reason: str
    position: int = 0
    likely: tuple[Likely, ...] = ()


def piece_of(frame: Frame[Array]) -> Piece:
    """What a frame on the edge `tokens` says. Raises BadFrame."""
    array, meta = only(frame, "tokens"), frame.meta
    if array.dtype != "int64" or array.shape != (1,):
        raise BadFrame("tokens", f"{array.dtype} {list(array.shape)}, not one int64")
    ids, pos = tuple(int(i) for i in np.frombuffer(array.data, np.int64)), meta.get("pos", 0)
    if type(pos) is not int or not 0 <= pos < 2**31:
        raise BadFrame("pos", "not a position")
    likely = likely_of(meta["logprobs"], ids[0]) if "logprobs" in meta else ()
    return Piece(str(meta.get("text", "")), ids, meta.get("end") is True, str(meta.get("reason", "")), pos, likely)


def only(frame: Frame[Array], name: str) -> Array:
    if len(frame.tensors) != 1:
        raise BadFrame(name, f"{len(frame.tensors)} tensors, one is expected")
    return frame.tensors[0]
