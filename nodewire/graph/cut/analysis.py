"""What stands behind each node of a program: weights, inputs, and whether it is cheaper made again than sent.

Nodes are numbers here, in the program's own order, which is topological.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nodewire.graph.program.format import Node, Output, Program
from nodewire.graph.program.format import refs as refs_of
from nodewire.graph.program.whitelist import Ref

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

FREE_WEIGHT_BYTES = 4_096
"""Recomputing a node is cheaper than shipping it while the weights behind it are no more than this (rotary tables)."""
_LARGE = FREE_WEIGHT_BYTES + 1


@dataclass(frozen=True, slots=True)
class Flow:
    """The nodes of a program and what flows between them, by number; `refs` has all that a node uses by name.

    `free` nodes are made again by whoever uses them: those behind which there are no weights (masks, positions) or
    small ones, and those that depend on nothing but weights (a transpose). `behind` has the weights, by name and bytes,
    that a node brings along, itself or through the free nodes that it uses. `inputs` has, as bits, the program's inputs
    that a node depends on.
    """

    program: Program
    number: Mapping[str, int]
    refs: tuple[tuple[str, ...], ...]
    uses: tuple[tuple[int, ...], ...]
    free: tuple[bool, ...]
    behind: tuple[Mapping[str, int], ...]
    inputs: tuple[int, ...]

    @property
    def free_names(self) -> frozenset[str]:
        return frozenset(node.name for node, free in zip(self.program.nodes, self.free, strict=True) if free)


def flow(program: Program, sent: Collection[str] = ()) -> Flow:
    """Sort the nodes of a program into free ones and ones of the chain; other tasks send the inputs named in `sent`."""
    number = {node.name: k for k, node in enumerate(program.nodes)}
    weights = {w.name: w.nbytes for w in program.weights}
    bits = {i.name: 1 << k for k, i in enumerate(program.inputs)}
    leaving = {out.value for out in program.outputs}
    refs: list[tuple[str, ...]] = []
    uses: list[tuple[int, ...]] = []
    free: list[bool] = []
    behind: list[Mapping[str, int]] = []
    inputs: list[int] = []
    dynamic: list[bool] = []
    cones: list[tuple[int, Mapping[str, int]]] = []  # bytes of all weights behind a node; the weights, while it is free
    for node in program.nodes:
        used: list[int] = []
        own: dict[str, int] = {}
        total = colour = 0
        moves = False
        names = tuple(dict.fromkeys(_used(node)))
        refs.append(names)
        for name in names:
            if (k := number.get(name)) is not None:
                used.append(k)
                colour |= inputs[k]
                moves = moves or dynamic[k]
                size, cone = cones[k]
                if free[k]:
                    own.update(cone)
                else:
                    total += size
            elif name in weights:
                own[name] = weights[name]
            else:
                moves = True
                colour |= bits.get(name, 0)
                if name in sent:
                    total = _LARGE
        total += sum(own.values())
        is_free = (not moves or total <= FREE_WEIGHT_BYTES) and node.name not in leaving
        uses.append(tuple(used))
        behind.append(own)
        inputs.append(colour)
        dynamic.append(moves)
        free.append(is_free)
        cones.append((total, own) if is_free else (_LARGE, {}))
    return Flow(program, number, tuple(refs), tuple(uses), tuple(free), tuple(behind), tuple(inputs))


def _used(node: Node) -> Iterator[str]:
    """As `Node.refs`, which looks into everything: most arguments are references or numbers."""
    for value in (*node.args, *node.kwargs.values()) if node.kwargs else node.args:
        if type(value) is Ref:
            yield value.name
        elif isinstance(value, list | tuple):
            yield from refs_of(value)


def with_own_outputs(program: Program) -> Program:
    """The program with a node for every output that is an input or a weight as it came: tasks send what they make."""
    made = {node.name for node in program.nodes}
    passed = [out for out in program.outputs if out.value not in made]
    if not passed:
        return program
    names = {out.value: f"{out.value}.out" for out in passed}
    copies = tuple(Node(name, "aten.clone.default", (Ref(value),)) for value, name in names.items())
    outputs = tuple(_renamed(out, names) for out in program.outputs)
    return replace(program, nodes=(*program.nodes, *copies), outputs=outputs)


def _renamed(out: Output, names: Mapping[str, str]) -> Output:
    return replace(out, value=names.get(out.value, out.value))
