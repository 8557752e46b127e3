"""Where a decoder is cut: the layers of its stages, each by its first and its last, as "0-7,8-15" says them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nodewire.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_STAGES = 256
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")
Border = tuple[int, int]
"""A stage's first layer and its last."""


def parse(text: str) -> tuple[Border, ...]:
    """The borders in text, such as "0-7,8-15"; a single layer may be written as its number.

    Raises:
        BadInput: it is no such list, or not one that `check` allows.

    """
    parts = [part.strip() for part in text.split(",")]
    found = [_RANGE.fullmatch(part) for part in parts]
    if not all(found) or len(parts) > MAX_STAGES:
        raise BadInput("split", f"{text[:80]!r} is not layers such as 0-7,8-15")
    borders = tuple((int(one[1]), int(one[2] or one[1])) for one in found if one is not None)
    check(borders)
    return borders


def check(borders: Sequence[Border], layers: int | None = None) -> None:
    """That every one of a model's `layers` (where it is known how many there are) stands in one stage, in their order.

    Raises:
        BadInput: one stands in none or in two, or the model has it not.

    """
    after = 0
    for first, last in borders:
        if last < first:
            raise BadInput("split", f"{first}-{last} ends before it begins")
        if first > after:
            raise BadInput("split", f"{_stand(after, first - 1)} in no stage")
        if first < after:
            raise BadInput("split", f"{_stand(first, min(after - 1, last))} in two stages")
        after = last + 1
    if layers is not None and after > layers:
        raise BadInput("split", f"ends with layer {after - 1}, and the model's last is {layers - 1}")
    if layers is not None and after < layers:
        raise BadInput("split", f"{_stand(after, layers - 1)} in no stage: the model has {layers}")


def written(borders: Sequence[Border]) -> str:
    """As `parse` reads it."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in borders)


def _stand(first: int, last: int) -> str:
    return f"layer {first} stands" if first == last else f"layers {first}-{last} stand"
