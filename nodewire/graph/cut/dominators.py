"""Dominators of an acyclic graph, and the forks that they bound: regions with a single entry and a single exit.

In topological order all predecessors of a node are done when it is reached, so its immediate dominator is the lowest
common ancestor of theirs in the tree so far, found by depth: one pass (Cooper, Harvey and Kennedy, "A simple, fast
dominance algorithm", 2001, without the iteration that cycles need). The dominators of the exit are a graph's main line:
whatever lies between two neighbours on it is entered through the one and left through the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = -1


def immediate_dominators(before: Sequence[Sequence[int]]) -> list[int]:
    """Of each node the nearest that all paths to it pass, ROOT if none; `before[v]` are predecessors, all under v."""
    parent: list[int] = []
    depth: list[int] = []
    for sources in before:
        common = sources[0] if sources else ROOT
        for other in sources[1:]:
            while common != other:
                if common == ROOT or other == ROOT:
                    common = ROOT
                    break
                if depth[common] >= depth[other]:
                    common = parent[common]
                else:
                    other = parent[other]
            if common == ROOT:
                break
        parent.append(common)
        depth.append(1 if common == ROOT else depth[common] + 1)
    return parent


def main_line(before: Sequence[Sequence[int]]) -> list[int]:
    """The nodes that every path from a first to a last node passes, in order."""
    count = len(before)
    last = set(range(count)).difference(*before)
    parent = immediate_dominators([*before, sorted(last)])
    line: list[int] = []
    at = parent[count]
    while at != ROOT:
        line.append(at)
        at = parent[at]
    return line[::-1]


def branches(before: Sequence[Sequence[int]], first: int, end: int) -> list[list[int]]:
    """Nodes first <= v < end as the parts of them that no edge joins, each in order."""
    part = list(range(first, end))

    def leader(v: int) -> int:
        while part[v - first] != v:
            part[v - first] = v = part[part[v - first] - first]
        return v

    for v in range(first, end):
        for u in before[v]:
            if u >= first:
                part[leader(u) - first] = leader(v)
    found: dict[int, list[int]] = {}
    for v in range(first, end):
        found.setdefault(leader(v), []).append(v)
    return list(found.values())
