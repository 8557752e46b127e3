"""Whether a batch may be computed in parts, or several as one.

Every output's row follows from the inputs' rows of the same number. Pure.

A model is a DAG of programs of whitelisted operators (nips/26). For every value it is followed along which
axis the batch lies, if it does; an operator that mixes what lies along it (a sum over it, a product of two batches), or
of which no rule is known (`batch_axis_rules`), ends the proof with its name. So a yes is a proof, and a no may be a
want of rules. It is about which numbers a row is made of. Their last bits may differ: a matrix product of few rows adds
in another order than one of many (docs/reference/measurement-history.md).

A customer cuts a call that is too large (`axes`); a provider computes calls of several customers as one (`batch_dim`),
where a program that mixes rows would show one customer's to another.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nodewire.protocol.model.manifest import CUSTOMER, Manifest
from nodewire.protocol.tensors.frame import MAX_RANK
from nodewire.taskgraph.batch_axis_rules import value_of
from nodewire.taskgraph.batch_axis_values import NUMBER, SIZE, UNKNOWN, Known, Number, Unproven, Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodewire.taskgraph.program import GraphProgram

__all__ = ["Unproven", "axes", "batch_dim"]


def axes(manifest: Manifest, programs: Mapping[str, GraphProgram], dim: str) -> dict[str, int | None]:
    """By output of the model, the axis along which the batch lies whose size is `dim` in the inputs.

    None: the output does not depend on the batch, nor on how large it is, so every part of one gives the whole of it
    (of a call of CLIP with many texts, what the images are).

    Raises:
        Unproven: parts of the batch might give something else, or no output lies along it.

    """
    found: dict[str, int | None] = {}
    edges: dict[str, list[Known]] = {}
    sources = {edge.name: edge.source for edge in manifest.edges}
    targets = {edge.name: edge.target for edge in manifest.edges}
    for task in manifest.tasks:
        program = programs[task.name]
        values, batch = _inputs(program, edges, sources, dim)
        _run(program, values, batch)
        for out in program.outputs:
            value = values.get(out.value, UNKNOWN)
            if isinstance(value, Number):
                raise Unproven(f"output {out.tensor} is a number")
            edges.setdefault(out.edge, []).append(value)
            if targets.get(out.edge) == CUSTOMER:
                if not isinstance(value, Value) or value.counts:
                    raise Unproven(f"output {out.tensor} is not known to lie along {dim}, or not to depend on it")
                found[out.tensor] = value.axis
    if all(axis is None for axis in found.values()):
        raise Unproven(f"no output lies along {dim}")
    return found


def _inputs(
    program: GraphProgram, edges: Mapping[str, Sequence[Known]], sources: Mapping[str, str], dim: str
) -> tuple[dict[str, Known], set[str]]:
    """The values of a program's inputs and weights, and which of its dims are the batch's size."""
    values: dict[str, Known] = {name: Value(shape) for name, shape in program.weights.items()}
    batch: set[str] = set()
    at: dict[str, int] = {}
    for port in program.inputs:
        sizes = tuple(n if isinstance(n, int) else None for n in port.shape)
        place = at.get(port.edge, 0)
        at[port.edge] = place + 1
        if sources.get(port.edge) == CUSTOMER:
            lies = [axis for axis, n in enumerate(port.shape) if n == dim]
            if len(lies) > 1:
                raise Unproven(f"{port.tensor} has {dim} twice")
            values[port.value] = Value(sizes, lies[0] if lies else None)
        else:
            known = edges.get(port.edge, ())
            if place >= len(known):
                raise Unproven(f"{port.tensor} comes from a later task, or from none")
            came = known[place]
            values[port.value] = replace(came, shape=sizes) if isinstance(came, Value) else Value(sizes)
        value = values[port.value]
        if isinstance(value, Value) and value.axis is not None:
            if value.axis >= len(port.shape) or not isinstance(name := port.shape[value.axis], str):
                raise Unproven(f"{port.tensor} has a batch of one size")
            batch.add(name)
    for port in program.inputs:
        value = values[port.value]
        for axis, name in enumerate(port.shape):
            if name in batch and not (isinstance(value, Value) and value.axis == axis):
                raise Unproven(f"{name} is another size of {port.tensor}, too")
    return values, batch


def batch_dim(program: GraphProgram) -> str | None:
    """The dim that stands first in every input and output, and nowhere else, if rows along it are apart; else None."""
    shapes = [port.shape for port in (*program.inputs, *program.outputs)]
    names = {shape[0] if shape else None for shape in shapes}
    (name,) = names if len(names) == 1 else (None,)
    if not isinstance(name, str) or program.dims.get(name, 0) < 2 or any(s.count(name) > 1 for s in shapes):
        return None
    values: dict[str, Known] = {weight: Value(shape) for weight, shape in program.weights.items()}
    for port in program.inputs:
        values[port.value] = Value(tuple(n if isinstance(n, int) else None for n in port.shape), 0)
    try:
        _run(program, values, {name})
    except Unproven:
        return None
    outputs = [values.get(out.value, UNKNOWN) for out in program.outputs]
    return name if all(isinstance(v, Value) and v.axis == 0 and not v.counts for v in outputs) else None


def _run(program: GraphProgram, values: dict[str, Known], batch: set[str]) -> None:
    """Add the values of a program's nodes."""

    def known(raw: Any) -> Any:
        if isinstance(raw, list):
            return [known(one) for one in raw]
        if isinstance(raw, dict) and "ref" in raw:
            return values.get(str(raw["ref"]), UNKNOWN)
        return raw

    for name in program.dims:
        values[name] = SIZE if name in batch else NUMBER
    for name, operator, args, kwargs in program.nodes:
        try:
            value = value_of(operator, known(args), {key: known(one) for key, one in kwargs.items()})
        except Unproven as error:
            raise Unproven(f"{name} ({operator}: {error})") from error
        if isinstance(value, Value) and len(value.shape) > MAX_RANK:  # which no provider loads
            raise Unproven(f"{name} ({operator}: of rank {len(value.shape)})")
        values[name] = value
