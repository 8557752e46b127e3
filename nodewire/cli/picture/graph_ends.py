"""What the customer sends to a model and gets of it, as boxes of its picture. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from nodewire.protocol.model.manifest import CUSTOMER, Edge, Manifest, Tensor
from nodewire.protocol.model.signature import described

SHARED = 4
"""Tasks that lines lead to from one box; what goes to more (a mask) has a box at each."""
MAX_LINES = 6


def sent(manifest: Manifest) -> dict[str, list[Edge]]:
    """By box: tensors that go to the same tasks stand together; of a box the edges to each, with these alone."""
    edges = [edge for edge in manifest.edges if edge.source == CUSTOMER]
    targets: dict[str, list[str]] = {}
    for edge in edges:
        for tensor in edge.tensors:
            targets.setdefault(tensor.name, []).append(edge.target)
    found: dict[str, list[Edge]] = {}
    for edge in edges:
        boxes: dict[str, list[Tensor]] = {} if edge.tensors else {f"in:{edge.name}": []}
        for tensor in edge.tensors:
            every = targets[tensor.name]
            boxes.setdefault(f"in:{[edge.target] if len(every) > SHARED else every}", []).append(tensor)
        for box, tensors in boxes.items():
            found.setdefault(box, []).append(edge.model_copy(update={"tensors": tuple(tensors)}))
    return found


def listed(edges: Sequence[Edge]) -> list[str]:
    """A line for each tensor of a box's edges, as many as it has room for."""
    lines = list(dict.fromkeys(f"{tensor.name}: {described(tensor)}" for edge in edges for tensor in edge.tensors))
    lines = lines or [edges[0].name]
    if len(lines) > MAX_LINES:
        lines[MAX_LINES - 1 :] = [f"and {len(lines) - MAX_LINES + 1} more"]
    return lines
