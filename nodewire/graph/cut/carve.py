"""Tasks out of a cut program: each gets its nodes, the free ones it needs, its weights, and edges to the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nodewire.errors import BadTask
from nodewire.graph.program.format import Input, Output, Program, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from nodewire.graph.cut.analysis import Flow

_RESHAPES = frozenset(("aten.reshape.default", "aten.flatten.using_ints", "aten.squeeze.dim", "aten.unsqueeze.default"))


DERIVED = "passes between tasks, and its size is derived from others, which no edge declares"
"""Of a tensor; who knows where in the model it was made says so."""


@dataclass(frozen=True, slots=True)
class Group:
    """A task to be: its name and the nodes that it owns."""

    name: str
    nodes: tuple[str, ...]


def edge_name(source: str, target: str) -> str:
    return f"{source}.to.{target}"


class Carver:
    """A program that tasks are carved out of; the model's inputs come from the task named `source`.

    A task that needs a dim and no tensor that has it is sent the first input of `sizing` that does.
    """

    def __init__(
        self,
        flow: Flow,
        shapes: Mapping[str, Shape],
        dtype: Callable[[str], torch.dtype],
        source: str,
        sizing: Sequence[Input] | None = None,
    ) -> None:
        self._sizing = flow.program.inputs if sizing is None else sizing
        self._flow, self._program, self._source = flow, flow.program, source
        self._shapes, self._dtype = shapes, dtype
        self._weights = {w.name: w for w in flow.program.weights}
        self._inputs = {i.name: i for i in flow.program.inputs}
        self._order = {name: k for k, name in enumerate((*self._weights, *self._inputs))}
        self._leaving: dict[str, list[Output]] = {}
        for out in flow.program.outputs:
            self._leaving.setdefault(out.value, []).append(out)
        self._last = list(range(len(flow.uses)))
        for k, uses in enumerate(flow.uses):
            for used in uses:
                self._last[used] = k

    def tasks(self, groups: Sequence[Group]) -> dict[str, Program]:
        """A program for each group, in their order.

        Raises:
            BadTask: a tensor between two groups has a derived size.

        """
        owner = {node: group.name for group in groups for node in group.nodes}
        tasks = {group.name: self._task(group, owner) for group in groups}
        leaving: dict[str, list[Output]] = {name: [] for name in tasks}
        for target in tasks.values():
            for i in target.inputs:
                if i.name in owner:
                    leaving[owner[i.name]].append(Output(i.name, i.name, i.dtype, i.shape, i.edge))
        for out in self._program.outputs:
            if out.value in owner:
                leaving[owner[out.value]].append(out)
        return {name: replace(task, outputs=tuple(leaving[name])) for name, task in tasks.items()}

    def alone(self, nodes: Sequence[str]) -> Program:
        """The task of these nodes, which stand together in the chain, whatever becomes of the others."""
        task = self._task(Group("", tuple(nodes)), {})
        outputs: list[Output] = []
        end = self._flow.number[nodes[-1]]
        for name in nodes:
            k = self._flow.number[name]
            if name in self._leaving:
                outputs += self._leaving[name]
            elif self._last[k] > end:
                outputs.append(Output(name, name, self._dtype(name), self._shapes[name]))
        return replace(task, outputs=tuple(outputs))

    def _is_reshaped(self, k: int) -> bool:
        """Whether a node gives a tensor other sizes, that no edge can declare: who needs it does so, too."""
        node = self._program.nodes[k]
        return node.op in _RESHAPES and node.name not in self._shapes

    def _task(self, group: Group, owner: Mapping[str, str]) -> Program:
        flow, program = self._flow, self._program
        needed = {flow.number[name] for name in group.nodes}
        used: dict[str, None] = {}
        waiting = list(needed)
        while waiting:
            for name in flow.refs[waiting.pop()]:
                used[name] = None
                k = flow.number.get(name)
                if k is not None and k not in needed and (flow.free[k] or self._is_reshaped(k)):
                    needed.add(k)
                    waiting.append(k)
        inputs = [
            replace(self._inputs[name], edge=edge_name(self._source, group.name))
            for name in sorted(used.keys() & self._inputs.keys(), key=self._order.__getitem__)
        ]
        numbers = (flow.number.get(name) for name in used)
        for k in sorted(k for k in numbers if k is not None and k not in needed):
            name = program.nodes[k].name
            if name not in self._shapes:
                raise BadTask(name, DERIVED)
            inputs.append(
                Input(name, self._dtype(name), self._shapes[name], edge_name(owner.get(name, ""), group.name))
            )
        have = {d for i in inputs for d in i.shape if isinstance(d, str)}
        for dim in program.dims:
            if dim in used and dim not in have:
                extra = next(i for i in self._sizing if dim in i.shape)
                if all(extra.name != i.name for i in inputs):
                    inputs.insert(0, replace(extra, edge=edge_name(self._source, group.name)))
                have |= {d for d in extra.shape if isinstance(d, str)}
        return Program(
            dims={name: most for name, most in program.dims.items() if name in have},
            volume=program.volume,
            inputs=tuple(inputs),
            weights=tuple(
                self._weights[name] for name in sorted(used.keys() & self._weights.keys(), key=self._order.__getitem__)
            ),
            nodes=tuple([program.nodes[k] for k in sorted(needed)]),
            outputs=(),
            slots=program.slots,
        )
