"""Frames that cannot be computed: what that is called, and who may be to blame. nips/15-feedback.md.

A task is fed by other tasks and by the customer. What is wrong with a neighbour's frame is always bad-frame, so that a
customer can tell it from a fault of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import BadFrame, NodewireError
from nodewire.protocol.job.plan import LOCAL
from nodewire.protocol.model.manifest import CUSTOMER, Manifest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


def refusal(error: NodewireError, manifest: Manifest, edges: Collection[str]) -> NodewireError:
    """What an error that a task raised about frames on these edges is called: bad-frame if another task makes any.

    Its field is the edge if only one of them is another task's. What is wrong with the customer's alone stays as it is.
    """
    between = [edge.name for edge in manifest.edges if edge.name in edges and edge.source != CUSTOMER]
    if not between:
        return error
    return BadFrame(between[0] if len(between) == 1 else "frames", str(error))


def suspects(manifest: Manifest, now: Mapping[str, str], who: str, edge: str = "") -> frozenset[str]:
    """Which providers send `who` what it says that it cannot compute.

    They send it on `edge`, or on all if that is none of its own. Then the driver is one of them, too, if the edge is
    one of the driver's.

    `now` has every task's provider. None are left where the frames are the customer's alone, or of its own tasks.
    """
    sources = {one.name: now.get(one.source, LOCAL) for one in manifest.edges if now.get(one.target) == who}
    found = {sources[edge]} if edge in sources else set(sources.values())
    if edge not in sources and is_driven(manifest, edge):
        found.add(now.get(manifest.driver.name, LOCAL))
    return frozenset(found - {LOCAL})


def driven(manifest: Manifest) -> str:
    """The edge that is named where what came breaks with what the driver has closed: who passes it on need not know."""
    return next((edge.name for edge in manifest.edges if is_driven(manifest, edge.name)), "frames")


def is_driven(manifest: Manifest, edge: str) -> bool:
    """Whether the driver sends to another task on an edge."""
    driver = manifest.driver.name
    return any(one.name == edge and one.source == driver and one.target != CUSTOMER for one in manifest.edges)
