"""A traced program in its plain form: no copies without effect, reshapes for views, nothing that nobody uses."""

from __future__ import annotations

from dataclasses import replace

from nodewire.graph.program.format import Node, Program, replace_refs
from nodewire.graph.program.whitelist import RESHAPE, VIEW, Ref

_COPY = "aten.clone.default"
"""In a functional graph nothing is written in place, so a copy (a dropout in evaluation, say) is its argument."""


def normalize(program: Program) -> Program:
    """The same function in fewer operators, in the same order."""
    same: dict[str, str] = {}
    nodes: list[Node] = []
    for node in program.nodes:
        args = tuple(replace_refs(arg, same) for arg in node.args)
        kwargs = {key: replace_refs(arg, same) for key, arg in node.kwargs.items()}
        if node.op == _COPY and not kwargs and isinstance(args[0], Ref):
            same[node.name] = args[0].name
            continue
        nodes.append(Node(node.name, RESHAPE if node.op == VIEW else node.op, args, kwargs))
    outputs = tuple(replace(out, value=same.get(out.value, out.value)) for out in program.outputs)
    return without_unused(replace(program, nodes=tuple(nodes), outputs=outputs))


def without_unused(program: Program) -> Program:
    """The program without nodes and weights that no output depends on."""
    used = {out.value for out in program.outputs}
    nodes: list[Node] = []
    for node in reversed(program.nodes):
        if node.name in used:
            nodes.append(node)
            used.update(node.refs())
    weights = tuple(w for w in program.weights if w.name in used)
    return replace(program, nodes=tuple(reversed(nodes)), weights=weights)
