"""The tokens that a judge's driver is given: those of the driver that it judges, by number. nips/19-judging.md."""

from __future__ import annotations

import array
import sys
from typing import TYPE_CHECKING

from nodewire.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping

SAID = "said"
BESIDE = "beside"
"""Parameters of a judge's session; no customer's request may have them."""
EXCUSED = "excused"
"""In a token's meta: true where the token of BESIDE is another, and excused."""
MAX_TOKENS = 65_536
"""The most of one session that is judged: as many as its inputs may have frames."""
_NONE = 2**32 - 1


def pack(tokens: Mapping[int, int]) -> bytes:
    """Tokens by number as a parameter: little-endian uint32, all ones where there is none."""
    known = {seq: token for seq, token in tokens.items() if 0 <= seq < MAX_TOKENS and 0 <= token < _NONE}
    listed = array.array("I", [known.get(seq, _NONE) for seq in range(max(known, default=-1) + 1)])
    if sys.byteorder != "little":
        listed.byteswap()
    return listed.tobytes()


def unpack(name: str, value: object) -> tuple[int | None, ...]:
    """Raises BadInput: a parameter that `pack` does not make."""
    if not isinstance(value, bytes) or len(value) % 4 or len(value) > 4 * MAX_TOKENS:
        raise BadInput(name, f"not up to {MAX_TOKENS} tokens of four bytes")
    listed = array.array("I", value)
    if sys.byteorder != "little":
        listed.byteswap()
    return tuple(None if token == _NONE else token for token in listed)
