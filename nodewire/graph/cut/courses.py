"""What programs take at given sizes, with each different call asked of torch's meta device once.

A deep model makes the same few calls in every layer. `liveness.walk` makes all of them, since it judges what a stranger
wrote; whoever looks for the best cut walks the same model many times, and remembers instead. Both count storages by
the same rules, and agree to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from nodewire.graph.program.format import Node, Program
from nodewire.graph.program.interpreter import Interpreter, Value
from nodewire.graph.program.liveness import Type, flops_of
from nodewire.graph.program.result_rules import by_rule
from nodewire.graph.program.whitelist import OPS, Op, Ref
from nodewire.graph.program.workspace import workspace_bytes

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

_HOLE = "a reference"


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A tensor's type and strides; equal ones are the same object within one `Calls`."""

    type: Type
    stride: tuple[int, ...]

    @property
    def is_contiguous(self) -> bool:
        return torch.empty_strided(self.type.shape, self.stride, device="meta").is_contiguous()


Token = Layout | int | tuple[Layout, ...]
"""What is known of a value: a tensor's layout, a size, or the layouts that a split makes."""


_Lies = int | tuple[int, ...]
"""The storage of a tensor, or those of a list."""
_NOWHERE = -1
"""Of sizes, and of weights, which are counted apart."""


@dataclass(frozen=True, slots=True)
class Course:
    """A program's course at given sizes.

    Storage s takes `storage_bytes[s]` from node `born[s]` to node `dies[s]`, or to the end, which comes after the last;
    `copied_bytes` is what contiguous copies of the outputs take there.

    Values count inputs first, then nodes.
    """

    tokens: tuple[Token, ...]
    born: Sequence[int]
    dies: Sequence[int]
    storage_bytes: Sequence[int]
    workspace_bytes: Sequence[int]
    flops: Sequence[int]
    copied_bytes: int

    @property
    def live_bytes(self) -> list[int]:
        """What is allocated while each node runs, weights excluded, and last while the outputs leave."""
        steps = [0] * (len(self.workspace_bytes) + 2)
        for born, dies, size in zip(self.born, self.dies, self.storage_bytes, strict=True):
            steps[born] += size
            steps[dies + 1] -= size
        extra = (*self.workspace_bytes, self.copied_bytes)
        return [now + more for now, more in zip(accumulate(steps), extra, strict=False)]

    def type(self, value: int) -> Type | None:
        """Of a tensor; None of a size or a list."""
        token = self.tokens[value]
        return token.type if isinstance(token, Layout) else None


_Step = tuple[Node, int, tuple[int, ...]]
"""A node, the number of its form, and the values that it refers to."""


_Form = tuple[int, tuple[str, ...]]
"""The number of a node's form, and the names of the values that it refers to."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """A call's result; `sources[i]` says in which given storage its i-th tensor lies, or -1-k for the k-th new one."""

    token: Token
    sources: tuple[int, ...]
    made_bytes: tuple[int, ...]
    workspace_bytes: int
    flops: int


_ONE_NEW = (-1,)
"""Sources of one tensor in a storage of its own."""


class Plan:
    """A program made ready to be walked at any sizes: every reference is a number."""

    def __init__(self, program: Program, calls: Calls) -> None:
        names = [*(i.name for i in program.inputs), *(n.name for n in program.nodes)]
        self.program = program
        self.count = len(names)
        number = {name: k for k, name in enumerate(names)}
        number.update({name: self.count + k for k, name in enumerate(program.dims)})
        first = self.count + len(program.dims)
        number.update({weight.name: first + k for k, weight in enumerate(program.weights)})
        self.number = number
        self.steps: list[_Step] = []
        values = number.__getitem__
        for node, (form, names_used) in zip(program.nodes, calls.forms(program.nodes), strict=True):
            self.steps.append((node, form, tuple(map(values, names_used))))
        self.outputs = [number[name] for name in dict.fromkeys(out.value for out in program.outputs)]
        stay = {i.name for i in program.inputs} | {out.value for out in program.outputs}
        end, first_node = len(program.nodes), len(program.inputs)
        self.last = [max(0, v - first_node) for v in range(self.count)]
        """The node after which a value is let go, at once if nobody uses it; the end for inputs and outputs."""
        for k, (_, _, refs) in enumerate(self.steps):
            for value in refs:
                if value < self.count:
                    self.last[value] = k
        for name in stay:
            if name in number and number[name] < self.count:
                self.last[number[name]] = end
        self.weights = [calls.layout(w.dtype, w.shape) for w in program.weights]


def _form(arg: Any, refs: list[str]) -> Hashable:
    """The argument without what it refers to; 1, 1.0 and True are three."""
    if type(arg) is Ref:
        refs.append(arg.name)
        return _HOLE
    if isinstance(arg, list | tuple):
        return tuple([_form(item, refs) for item in arg])
    return (type(arg), arg)


class Calls:
    """Calls that torch has answered, for any number of programs."""

    def __init__(self) -> None:
        self._forms: dict[Hashable, int] = {}
        self._nodes: dict[int, tuple[Node, _Form]] = {}  # by id, which the node held keeps its own
        self._layouts: dict[Hashable, Layout] = {}
        self._answers: dict[tuple[int, tuple[Token, ...]], _Answer] = {}

    def forms(self, nodes: Sequence[Node]) -> list[_Form]:
        """Of each node the number of its form, alike where only what they refer to differs; and the names."""
        known, numbers = self._nodes, self._forms
        found: list[_Form] = []
        for node in nodes:
            if (of := known.get(id(node))) is None:
                refs: list[str] = []
                form = (node.op, _form(node.args, refs), *((k, _form(v, refs)) for k, v in node.kwargs.items()))
                of = known[id(node)] = (node, (numbers.setdefault(form, len(numbers)), tuple(refs)))
            found.append(of[1])
        return found

    def layout(self, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...] | None = None) -> Layout:
        """Of a tensor of these strides, contiguous by default."""
        known = self._layouts.get((dtype, shape, stride))
        if known is not None:
            return known
        if stride is None:
            sizes = [max(1, n) for n in shape[:0:-1]]
            made = self.layout(dtype, shape, tuple(accumulate([1, *sizes], int.__mul__))[: len(shape)][::-1])
        else:
            made = Layout(Type(dtype, shape), stride)
        self._layouts[dtype, shape, stride] = made
        return made

    def course(self, plan: Plan, sizes: Mapping[str, int]) -> Course:
        """The program's course with dims of `sizes`.

        Raises:
            BadTask: an operator refuses its arguments; names the node.

        """
        program, answers = plan.program, self._answers
        tokens: list[Token] = []
        born: list[int] = []
        dies: list[int] = []
        held: list[int] = []
        nodes, last = len(plan.steps), plan.last
        for declared in program.inputs:
            layout = self.layout(declared.dtype, tuple(sizes[d] if isinstance(d, str) else d for d in declared.shape))
            tokens.append(layout)
            born.append(0)
            dies.append(nodes)
            held.append(layout.type.nbytes)
        tokens += [0] * nodes
        tokens += [sizes[name] for name in program.dims]
        tokens += plan.weights
        lies: list[_Lies] = [*range(len(held)), *[_NOWHERE] * (len(tokens) - len(held))]
        workspaces: list[int] = []
        flops: list[int] = []
        for value, (node, form, refs) in enumerate(plan.steps, start=len(program.inputs)):
            given = tuple([tokens[r] for r in refs])
            answer = answers.get((form, given))
            if answer is None:
                answer = answers[form, given] = self._ask(node, given)
            tokens[value] = answer.token
            workspaces.append(answer.workspace_bytes)
            flops.append(answer.flops)
            first = len(held)
            for size in answer.made_bytes:
                born.append(value - len(program.inputs))
                dies.append(last[value])
                held.append(size)
            if answer.sources == _ONE_NEW:
                lies[value] = first
                continue
            places = [
                first - 1 - source if source < 0 else _place(refs, lies, given, source) for source in answer.sources
            ]
            for place in places:
                if place != _NOWHERE and last[value] > dies[place]:
                    dies[place] = last[value]
            if places:
                lies[value] = places[0] if isinstance(answer.token, Layout) else tuple(places)
        leaving = [token for value in plan.outputs if isinstance(token := tokens[value], Layout)]
        copied = sum(token.type.nbytes for token in leaving if not token.is_contiguous)
        return Course(tuple(tokens), born, dies, held, workspaces, flops, copied)

    def _ask(self, node: Node, given: Sequence[Token]) -> _Answer:
        """Have the interpreter run this one node on the meta device, unless there is a rule for it."""
        tensors: list[torch.Tensor] = []
        env = {name: _held(token, tensors) for name, token in zip(node.refs(), given, strict=True)}
        op = OPS[node.op]
        known = op.bound([_real(a, env) for a in node.args], {key: _real(a, env) for key, a in node.kwargs.items()})
        result = by_rule(op, known)
        if result is not None:
            return self._answer(op, known, result, tensors)
        alone = Program(dims={}, volume=1, inputs=(), weights=(), nodes=(node,), outputs=())
        said: list[_Answer] = []

        def note(_: Node, op: Op, bound: Mapping[str, Value], result: Value, freed: Sequence[str]) -> None:
            said.append(self._answer(op, bound, result, tensors))

        Interpreter(alone, env, "meta")({}, {}, note)
        return said[0]

    def _answer(self, op: Op, bound: Mapping[str, Value], result: Value, given: Sequence[torch.Tensor]) -> _Answer:
        if isinstance(result, int):
            return _Answer(result, (), (), 0, 0)
        results = result if isinstance(result, list) else [result]
        keys = [_key(t) for t in given]
        made: dict[int, int] = {}
        sources: list[int] = []
        for one in results:
            if _key(one) in keys:
                sources.append(keys.index(_key(one)))
            else:
                made.setdefault(_key(one), len(made))
                sources.append(-1 - made[_key(one)])
        nbytes = {_key(one): one.untyped_storage().nbytes() for one in results}
        layouts = tuple(self.layout(t.dtype, tuple(t.shape), tuple(t.stride())) for t in results)
        return _Answer(
            token=layouts if isinstance(result, list) else layouts[0],
            sources=tuple(sources),
            made_bytes=tuple(nbytes[key] for key in made),
            workspace_bytes=workspace_bytes(op, bound, results, threads=1),
            flops=flops_of(op, bound, results),
        )


def _place(refs: Sequence[int], lies: Sequence[_Lies], given: Sequence[Token], source: int) -> int:
    """The storage of the `source`-th tensor among the arguments."""
    for ref, token in zip(refs, given, strict=True):
        count = 1 if isinstance(token, Layout) else len(token) if isinstance(token, tuple) else 0
        if source < count:
            found = lies[ref]
            return found[source] if isinstance(found, tuple) else found
        source -= count
    raise IndexError(source)


def _real(arg: Any, env: Mapping[str, Value]) -> Value:
    if type(arg) is Ref:
        return env[arg.name]
    return [_real(item, env) for item in arg] if isinstance(arg, list | tuple) else arg


def _held(token: Token, made: list[torch.Tensor]) -> Value:
    """A value of this kind on the meta device; its tensors are added to `made`."""
    if isinstance(token, Layout):
        shape, dtype = token.type.shape, token.type.dtype
        made.append(torch.empty_strided(shape, token.stride, dtype=dtype, device="meta"))
        return made[-1]
    return [_held(one, made) for one in token] if isinstance(token, tuple) else token


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
