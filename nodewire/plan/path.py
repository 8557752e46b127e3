"""How long it takes from each task to the end of a job, along the longest path: what a provider's queue goes by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.protocol.model.manifest import CUSTOMER, Edge, Manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def remaining_us(manifest: Manifest, took_us: Mapping[str, int], link_us: Callable[[Edge], int]) -> dict[str, int]:
    """By task, the microseconds from the beginning of its call to the end of the longest path that begins there.

    `took_us` is how long tasks compute (0 where it lacks one), `link_us` what an edge takes. Edges that close a ring do
    not count: a path leads through a turn, not through the turns that follow.
    """
    after: dict[str, list[Edge]] = {}
    for edge in manifest.edges:
        if edge.source != CUSTOMER and not edge.back:
            after.setdefault(edge.source, []).append(edge)
    remaining: dict[str, int] = {CUSTOMER: 0}
    for task in reversed(manifest.tasks):
        onward = (link_us(edge) + remaining[edge.target] for edge in after.get(task.name, ()))
        remaining[task.name] = took_us.get(task.name, 0) + max(onward, default=0)
    del remaining[CUSTOMER]
    return remaining
