"""Network coordinates: where a node is, so that the round trip between any two nodes can be predicted.

A point of the plane and a height above it, in microseconds. The way from one node to another goes down, across and up:
the height is what lies between a node and everybody else, such as its line at home. Nodes learn theirs by themselves
(`nodewire.wire.measure.vivaldi`) and publish them in their beats.

Dabek, Cox, Kaashoek, Morris: Vivaldi, a decentralized network coordinate system. SIGCOMM 2004.
"""

from __future__ import annotations

from math import isqrt
from typing import Annotated

from pydantic import Field

MOST_US = 10_000_000
Microseconds = Annotated[int, Field(ge=-MOST_US, le=MOST_US)]
Coordinates = tuple[Microseconds, Microseconds, Microseconds]
"""x, y and height; the height is not negative."""


def rtt_us(a: Coordinates, b: Coordinates) -> int:
    """The round trip between two nodes as their coordinates predict it, in microseconds. Integers only."""
    (ax, ay, a_height), (bx, by, b_height) = a, b
    return isqrt((ax - bx) ** 2 + (ay - by) ** 2) + a_height + b_height


def in_ms(at: Coordinates) -> Coordinates:
    """The same in whole milliseconds: what is less is chance, and would choose between nodes of one room."""
    x, y, height = ((one + 500) // 1_000 * 1_000 for one in at)
    return x, y, height
