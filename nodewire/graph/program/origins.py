"""From which input edges each value of a program follows: who may be to blame for what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodewire.graph.program.format import Program


def origins(program: Program) -> dict[str, frozenset[str]]:
    """By name of an input, dim, weight or node: the edges whose frames decide what it is, sizes included."""
    found = {declared.name: frozenset({declared.edge}) for declared in program.inputs}
    for dim in program.dims:
        found[dim] = frozenset(declared.edge for declared in program.inputs if dim in declared.shape)
    for node in program.nodes:
        found[node.name] = frozenset().union(*(found.get(name, ()) for name in node.refs()))
    return found
