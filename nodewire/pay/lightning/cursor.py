"""Cursors that name their wallet, so that none is taken for a place in another's record: "WALLET/PLACE"."""

from __future__ import annotations

from nodewire.errors import BadInput

_MOST_DIGITS = 19


def at(wallet: str, place: int) -> str:
    """The cursor of the wallet with this id at a place of its record."""
    return f"{wallet}/{place}"


def place_of(wallet: str, cursor: str) -> int:
    """The place that a cursor stands for; 0 for an empty one.

    Raises:
        BadInput: it is of another wallet, or none.

    """
    if not cursor:
        return 0
    named, _, place = cursor.rpartition("/")
    if named != wallet or not (place.isascii() and place.isdecimal() and len(place) <= _MOST_DIGITS):
        raise BadInput("cursor", f"{cursor[:100]!r} is none of this wallet, {wallet}: each has its own")
    return int(place)
