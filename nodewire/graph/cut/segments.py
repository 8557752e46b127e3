"""The parts of a program that are cut each for itself: parallel branches, what comes before them, and what joins them.

A branch is worth tasks of its own if it holds a tenth of the work at some size, and several matrix products: towers are
parted, the projections of one attention layer are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.graph.cut import colour
from nodewire.graph.cut.dominators import branches, main_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence, Set

    from nodewire.graph.cut.analysis import Flow


@dataclass(frozen=True, slots=True)
class Segment:
    """Nodes by number, in order; whether others run beside it."""

    nodes: tuple[int, ...]
    is_branch: bool


_SHARE = 10
_PRODUCTS = 3
_IS_PRODUCT = ("aten.linear.", "aten.matmul.", "aten.mm.", "aten.bmm.", "aten.addmm.", "aten.conv")


def segments(flow: Flow, flops: Sequence[Sequence[int]], aside: Set[int], sent: Collection[str]) -> list[Segment]:
    """Nodes of the chain, those in `aside` left out, as segments in an order in which these can run.

    `flops[c][k]` is the work of node k at the c-th of the largest sizes; `sent` names the nodes whose values have sizes
    that an edge can declare.
    """
    part = _SegmentSearch(flow, flops, [k for k, free in enumerate(flow.free) if not free and k not in aside])
    levels = _levels(flow, aside, sent)
    groups = part.by_inputs()
    found: list[Segment] = []
    for group in groups:
        for level in sorted({levels[k] for k in group}):
            parts = [one for one in part.by_forks([k for k in group if levels[k] == level]) if one]
            found += [Segment(tuple(sorted(one)), len(groups) + len(parts) > 2) for one in parts]
    return found


def _levels(flow: Flow, aside: Set[int], sent: Collection[str]) -> list[int]:
    """How many tasks of `aside` that wait for the chain stand before each node: a task cannot hold both its ends.

    What cannot be sent is made where it is used: a shared expert beside groups of others, whose rows are those of a
    whole batch in one, with what adds it to them.
    """
    levels: list[int] = []
    for k, uses in enumerate(flow.uses):
        waits = [levels[u] + (u in aside and k not in aside) for u in uses if not flow.free[u] and levels[u] >= 0]
        levels.append(max(waits, default=-1 if k in aside or flow.free[k] else 0))
    users: list[list[int]] = [[] for _ in levels]
    for k in reversed(range(len(levels))):
        if users[k] and levels[k] >= 0 and flow.program.nodes[k].name not in sent and aside.isdisjoint(users[k]):
            levels[k] = min(levels[u] for u in users[k])
        for used in flow.uses[k]:
            users[used].append(k)
    return levels


class _SegmentSearch:
    def __init__(self, flow: Flow, flops: Sequence[Sequence[int]], chain: Sequence[int]) -> None:
        self._flow, self._flops, self._chain = flow, flops, chain
        self._whole = [sum(work) for work in flops]
        self._product = [
            node.op.startswith(_IS_PRODUCT) and bool(behind)
            for node, behind in zip(flow.program.nodes, flow.behind, strict=True)
        ]

    def by_inputs(self) -> list[list[int]]:
        place = {k: v for v, k in enumerate(self._chain)}
        users: list[list[int]] = [[] for _ in self._chain]
        for v, k in enumerate(self._chain):
            for used in self._flow.uses[k]:
                if used in place:
                    users[place[used]].append(v)
        colours = [self._flow.inputs[k] for k in self._chain]
        nodes: dict[int, list[int]] = {}
        for k, own in zip(self._chain, colours, strict=True):
            nodes.setdefault(own, []).append(k)
        heavy = {own: self._is_heavy(those) for own, those in nodes.items()} if len(nodes) > 1 else {}
        return [[self._chain[v] for v in group] for group in colour.groups(colours, users, heavy)]

    def by_forks(self, nodes: Sequence[int]) -> Iterable[list[int]]:
        """The nodes in series, parted wherever two heavy branches lie between two nodes of the main line."""
        place = {k: v for v, k in enumerate(nodes)}
        before = [[place[u] for u in self._flow.uses[k] if u in place] for k in nodes]
        line = main_line(before)
        series: list[int] = []
        at = 0
        for stop in [*line, len(nodes)]:
            inside = [[nodes[v] for v in branch] for branch in branches(before, at, stop)] if stop - at > 1 else []
            heavy = [branch for branch in inside if self._is_heavy(branch)] if len(inside) > 1 else []
            if len(heavy) > 1:
                yield series
                for branch in heavy:
                    yield from self.by_forks(branch)
                series = [k for branch in inside if branch not in heavy for k in branch]
                series += nodes[stop : stop + 1]
            else:
                series += nodes[at : stop + 1]
            at = stop + 1
        yield series

    def _is_heavy(self, nodes: Sequence[int]) -> bool:
        if sum(self._product[k] for k in nodes) < _PRODUCTS:
            return False
        return any(
            sum(work[k] for k in nodes) * _SHARE >= whole for work, whole in zip(self._flops, self._whole, strict=True)
        )
