"""By what a job's calls wait for this provider's worker: who pays for it, and how far each task is from its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.kind import Turn
from nodewire.plan.assign import LINK_BYTES_PER_MS, link_us
from nodewire.plan.path import remaining_us
from nodewire.protocol.model.manifest import CUSTOMER, Edge, Manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.protocol.job.plan import Plan
    from nodewire.protocol.market.snapshot import Node

TOGETHER = frozenset({"graph"})
"""Engines that compute when the frames of one seq have come on all their edges."""


def turns(plan: Plan, manifest: Manifest, nodes: Mapping[str, Node]) -> dict[str, Turn]:
    """By task, what its calls wait by.

    Times are the plan's own estimates: certified speeds, links by coordinates. Of who is not among `nodes` (by public
    key) nothing is known.
    """
    at = {one.task: nodes.get(one.provider) for one in plan.tasks}
    took_us = {}
    for task, node in at.items():
        held = next((held for held in node.held if held.manifest == plan.manifest), None) if node else None
        offer = next((offer for offer in held.tasks if offer.task == task), None) if held else None
        took_us[task] = offer.us_per_position if offer else 0

    def took(edge: Edge) -> int:
        source, target = at.get(edge.source), at.get(edge.target)
        if CUSTOMER in (edge.source, edge.target) or source is target or source is None or target is None:
            return 0
        return link_us(source, target) + edge.bytes_per_position * 1_000 // LINK_BYTES_PER_MS

    remaining = remaining_us(manifest, took_us, took)
    inputs: dict[str, set[str]] = {}
    for edge in manifest.edges:
        inputs.setdefault(edge.target, set()).add(edge.name)
    return {
        task.name: Turn(
            customer=plan.customer,
            remaining_us=remaining[task.name],
            together=frozenset(inputs.get(task.name, ())) if task.engine in TOGETHER else frozenset(),
        )
        for task in manifest.tasks
    }
