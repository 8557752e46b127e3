"""What a model may be called, and which names look alike.

A manifest's name has few letters (`schema.Name`), so no other alphabet can imitate one. What is left to imitate with is
in this alphabet, too: `smo1lm2`, `smollm-2`.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated

from pydantic import AfterValidator

from nodewire.errors import BadInput

NADDR = "naddr1"
"""How an address in NIP-19's form begins; so no name that is typed does."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._-")
_ALIKE = str.maketrans({"0": "o", "1": "l", "i": "l", "5": "s", ".": "", "_": "", "-": ""})
_PAIRS = (("rn", "m"), ("vv", "w"), ("cl", "d"))
"""Pairs that look like a letter, after letters that look alike are one: `c1`, `ci` and `c-l` are `cl`, too."""


def name_in(text: str, field: str = "model") -> str:
    """The name that `text` is, its capitals written small. Errors name `field`.

    Raises:
        BadInput: it is none; the first letter that no name has is said by its name.

    """
    small = text.lower() if text.isascii() else text  # other capitals become letters of this alphabet, too
    if odd := next((letter for letter in small if letter not in _LETTERS), None):
        what = unicodedata.name(odd, "a control character")
        raise BadInput(field, f"{text[:80]!r} has {odd!r} ({what}): a model's name has a-z, 0-9, ., _ and - alone")
    if not _NAME.fullmatch(small):
        raise BadInput(field, f"{text[:80]!r} is no name of a model: 1 to 64 letters, the first a-z or 0-9")
    if small.startswith(NADDR):
        raise BadInput(field, f"{text[:80]!r} begins as an address does ({NADDR}), so it cannot be a name")
    return small


def skeleton(name: str) -> str:
    """The same for names that a reader may take for each other."""
    shape = name.translate(_ALIKE)
    for pair, letter in _PAIRS:
        shape = shape.replace(pair, letter)
    return shape


def _typed(text: str) -> str:
    try:
        if name_in(text) == text:
            return text
    except BadInput as error:
        raise ValueError(error.reason) from error
    raise ValueError(f"{text[:80]!r} has capitals")


Alias = Annotated[str, AfterValidator(_typed)]
"""A name that a configuration gives to a model."""
