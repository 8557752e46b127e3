"""What crosses each boundary of a program's chain, and what is live at its nodes, from types alone."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from nodewire.graph.cut.courses import Course, Layout
from nodewire.graph.cut.cut import MAX_CROSSING, BoundaryTensor, Chain, Step
from nodewire.graph.program.format import DTYPES, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodewire.graph.cut.analysis import Flow

_SENT = frozenset(DTYPES.values())


def chain(flow: Flow, courses: Sequence[Course], shapes: Mapping[str, Shape]) -> Chain:
    """The chain of a program, at the largest sizes it admits; `courses` are its courses at them."""
    nodes = flow.program.nodes
    rows = [k for k, free in enumerate(flow.free) if not free]
    own, free, floor = _live(flow, courses, rows)
    inputs = range(len(flow.program.inputs))
    given = max(sum(kind.nbytes for v in inputs if (kind := course.type(v)) is not None) for course in courses)
    steps = tuple(
        Step(nodes[k].name, flow.behind[k], live, made) for k, live, made in zip(rows, own, free, strict=True)
    )
    return Chain(steps, _crossing(flow, courses, shapes, rows), floor, given)


def _live(flow: Flow, courses: Sequence[Course], rows: Sequence[int]) -> tuple[list[int], list[int], int]:
    """Of every step, what is live while it runs or a free node before it: the chain's values, and free ones.

    Third, the most that free values take while one of them is made: what a task takes before its own first node.
    """
    inputs = len(flow.program.inputs)
    is_free = np.array(flow.free, dtype=bool)
    starts = np.array([0, *(k + 1 for k in rows[:-1])], dtype=np.int64)
    own, free, floor = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64), 0
    for course in courses:
        born, dies = np.array(course.born, np.int64), np.array(course.dies, np.int64)
        size, extra = np.array(course.storage_bytes, np.int64), np.array(course.workspace_bytes, np.int64)
        made = is_free[born]
        made[:inputs] = True
        live = []
        for chosen in (~made, made):
            change = np.zeros(len(is_free) + 2, np.int64)
            np.add.at(change, born[chosen], size[chosen])
            np.add.at(change, dies[chosen] + 1, -size[chosen])
            live.append(change.cumsum()[:-2])
        live[0] += np.where(is_free, 0, extra)
        live[1] += np.where(is_free, extra, 0)
        own = np.maximum(own, np.maximum.reduceat(live[0], starts))
        free = np.maximum(free, np.maximum.reduceat(live[1], starts))
        floor = max(floor, int(live[1][is_free].max(initial=0)))
    return own.tolist(), free.tolist(), floor


def _crossing(
    flow: Flow, courses: Sequence[Course], shapes: Mapping[str, Shape], rows: Sequence[int]
) -> tuple[tuple[BoundaryTensor, ...] | None, ...]:
    """Of every boundary the tensors that cross it; None where they are too many, or of a size that has no name."""
    inputs = len(flow.program.inputs)
    step = {k: s for s, k in enumerate(rows)}
    last = list(range(len(rows)))
    for s, k in enumerate(rows):
        for used in flow.uses[k]:
            if used in step:
                last[step[used]] = s
    ending: list[list[int]] = [[] for _ in rows]
    for s, end in enumerate(last):
        ending[end].append(s)

    nodes, walks = (
        flow.program.nodes,
        [(course.tokens, set(zip(course.born, course.storage_bytes, strict=True))) for course in courses],
    )

    @cache
    def tensor(s: int) -> BoundaryTensor | None:
        k = rows[s]
        if nodes[k].name not in shapes:
            return None
        most, is_view = 0, False
        for tokens, own in walks:
            token = tokens[inputs + k]
            if type(token) is not Layout or token.type.dtype not in _SENT:
                return None
            nbytes = token.type.nbytes
            most, is_view = max(most, nbytes), is_view or (k, nbytes) not in own
        return BoundaryTensor(nodes[k].name, most, last[s], is_view)

    found: list[tuple[BoundaryTensor, ...] | None] = [()]
    passing: dict[int, None] = {}
    for s in range(len(rows)):
        passing[s] = None
        for done in ending[s]:
            del passing[done]
        tensors = [tensor(v) for v in passing] if len(passing) <= MAX_CROSSING else [None]
        found.append(None if None in tensors else tuple(one for one in tensors if one is not None))
    return tuple(found)
