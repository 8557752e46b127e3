"""What a job of a generation puts out, as its customer reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import BadFrame

if TYPE_CHECKING:
    from nodewire.customer.tokens.logprobs import Likely
    from nodewire.protocol.tensors.frame import Array, Frame


@dataclass(frozen=True, slots=True)
class Piece:
    """One step of a generation: its token ids and the text that became printable with them.

    All of it follows from the ids, but for two things that are the driver's word: how many positions the prompt takes,
    which are those before `position`; and the numbers in `likely`, where `logprobs` was asked for: the id itself
    first, then those that the model found likeliest.
    """

    text: str
    ids: tuple[int, ...]
    end: bool
    reason: str
    position: int = 0
    likely: tuple[Likely, ...] = ()


def only(frame: Frame[Array], name: str) -> Array:
    if len(frame.tensors) != 1:
        raise BadFrame(name, f"{len(frame.tensors)} tensors, one is expected")
    return frame.tensors[0]
