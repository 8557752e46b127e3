"""What is known of a value while rows are followed through a program: its rank, sizes, and where the batch lies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class Unproven(Exception):
    """No rule says that rows stay apart; `str()` says why, or by which node."""


@dataclass(frozen=True, slots=True)
class Value:
    """`shape` is sizes where they are known, and `axis` is where the batch lies.

    It is None if the value does not depend on it. `counts`: the value along it is the row's own number, which is good
    for nothing but to pick rows by.
    """

    shape: tuple[int | None, ...]
    axis: int | None = None
    counts: bool = False


class Number:
    """A size or another number of which nothing is known, but whether it is the `batch`'s size."""

    def __init__(self, *, batch: bool = False) -> None:
        self.batch = batch


class Unknown:
    """A tensor of which nothing is known, but that it does not depend on the batch."""


@dataclass(frozen=True, slots=True)
class First(Value):
    """Several tensors, of which the first is this and the others are unknown."""


SIZE, NUMBER, UNKNOWN = Number(batch=True), Number(), Unknown()
Known = Value | Number | Unknown


def to_value(value: Any) -> Value:
    """A value, not a number. Raises Unproven: nothing is known of it."""
    if not isinstance(value, Value):
        raise Unproven("of a value of which nothing is known")
    return value


def fixed(value: Any, rank: int) -> Value:
    """Weights of that rank: what does not depend on the batch."""
    found = to_value(value)
    if found.axis is not None:
        raise Unproven("weights that depend on the batch")
    if len(found.shape) != rank:
        raise Unproven("weights of another rank")
    return found


def dim_of(dim: Any, rank: int) -> int:
    """A dim as a number from 0. Raises Unproven: it is no constant, or none of so many."""
    if type(dim) is not int or not -rank <= dim < max(rank, 1):
        raise Unproven("along a dim that is not fixed")
    return dim % max(rank, 1)


def along(x: Value, dim: Any) -> int:
    """A dim of `x` that is not the batch's. Raises Unproven."""
    found = dim_of(dim, len(x.shape))
    if found == x.axis:
        raise Unproven("along the batch")
    return found


def resized(x: Value, at: int, size: int | None) -> Value:
    """Raises Unproven: what has no dims is only taken for having one."""
    if at >= len(x.shape):
        raise Unproven("of a number")
    return replace(x, shape=(*x.shape[:at], size, *x.shape[at + 1 :]))


def broadcast(values: Sequence[Value]) -> Value:
    """Values against each other: those that depend on the batch have it at one place from the right, the others 1."""
    rank = max((len(one.shape) for one in values), default=0)
    places = {rank - len(one.shape) + one.axis for one in values if one.axis is not None}
    if len(places) > 1:
        raise Unproven("two batches")
    axis = next(iter(places), None)
    shape: list[int | None] = []
    for place in range(rank):
        here = [(one, one.shape[k]) for one in values if (k := place - rank + len(one.shape)) >= 0]
        if place == axis and any(one.axis is None and size != 1 for one, size in here):
            raise Unproven("a constant has rows, too")
        sizes = [size for _, size in here if size != 1]
        shape.append(None if None in sizes else sizes[0] if sizes else 1)
    return Value(tuple(shape), axis, any(one.counts for one in values))
