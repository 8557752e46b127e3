"""Mixtures of experts: one batched product over gathered weights becomes a few products for the rows that chose them.

A mixture is exported as a gather of whole weight matrices for every row and choice (transformers' "batched_mm"), which
takes more memory than the model. It is rewritten so that each expert sees the rows that chose it:

    router .. x, chosen, weights -> select_rows for a group of experts
    group: for each expert   select_rows -> its products -> times the row's weight -> scatter_rows, added up
    combine: scatter_rows of each group's rows, added up

With one group all of it is nodes among others; with several each group is a task beside the chain, and is sent its own
rows. Sums over a row's experts run in another order than in the whole model, so results differ in the last digits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nodewire.graph.cut.rows import RowRange
from nodewire.graph.program.format import SOME, Node, Program, Shape, Weight, refs, replace_refs
from nodewire.graph.program.normalization import without_unused
from nodewire.graph.program.whitelist import SCATTER, SELECT, Ref

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_GATHER, _BMM, _ADD = "aten.index.Tensor", "aten.bmm.default", "aten.add.Tensor"
_SUM = "aten.sum.dim_IntList"
_SHAPING = (
    "aten.unsqueeze.default",
    "aten.squeeze.dim",
    "aten.expand.default",
    "aten.clone.default",
    "aten.flatten.using_ints",
    "aten.reshape.default",
    "aten.view.default",
)


@dataclass(frozen=True, slots=True)
class Mixture:
    """The nodes of one mixture: from the gathers of `up` [experts, .., ..] and `down` to the sum named `result`.

    Biases [experts, ..] are added to the products of each. `middle` lies between the two, from the value `entry` to the
    value `exit`.
    """

    x: str
    chosen: str
    weights: str
    choices: int
    up: Weight
    down: Weight
    up_is_turned: bool
    down_is_turned: bool
    up_bias: Weight | None
    down_bias: Weight | None
    middle: tuple[Node, ...]
    entry: str
    exit: str
    result: str

    @property
    def experts(self) -> int:
        return self.up.shape[0]

    @property
    def stacks(self) -> tuple[Weight, ...]:
        return tuple(one for one in (self.up, self.up_bias, self.down, self.down_bias) if one is not None)

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.stacks)


@dataclass(frozen=True, slots=True)
class RewrittenProgram:
    """`parts` names the nodes of each group that is to be a task; `ranges` which expert each new weight is."""

    program: Program
    shapes: Mapping[str, Shape]
    parts: Mapping[str, tuple[str, ...]]
    ranges: Mapping[str, RowRange]


def rewrite(program: Program, shapes: Mapping[str, Shape], found: Sequence[Mixture], groups: int) -> RewrittenProgram:
    """The program with its mixtures in the form above, each in so many groups, or one for each expert."""
    if not found:
        return RewrittenProgram(program, shapes, {}, {})
    known = dict(shapes)
    parts: dict[str, tuple[str, ...]] = {}
    ranges: dict[str, RowRange] = {}
    weights: dict[str, Weight] = {w.name: w for w in program.weights}
    made: dict[str, list[Node]] = {}
    for number, mixture in enumerate(found):
        for whole in mixture.stacks:
            for expert in range(mixture.experts):
                name = _expert(whole, expert)
                weights[name] = replace(whole, name=name, shape=(1, *whole.shape[1:]))
                ranges[name] = RowRange(whole.name, expert, expert + 1)
        writer = _Writer(mixture, known)
        made[mixture.result] = writer.write(min(groups, mixture.experts))
        parts.update({f"experts.{number}.{k}": part for k, part in enumerate(writer.parts)})
    nodes = [one for node in program.nodes for one in made.get(node.name, [node])]
    written = without_unused(replace(program, nodes=tuple(nodes), weights=tuple(weights.values())))
    return RewrittenProgram(written, known, parts, ranges)


def _expert(weight: Weight, expert: int) -> str:
    return f"{weight.name}.rows.{expert}"


class _Writer:
    """Writes the nodes of one mixture; shapes of what passes between tasks go into `shapes`."""

    def __init__(self, mixture: Mixture, shapes: dict[str, Shape]) -> None:
        self._of, self._shapes = mixture, shapes
        self._nodes: list[Node] = []
        self._width = mixture.down.shape[2 if mixture.down_is_turned else 1]
        self.parts: list[tuple[str, ...]] = []

    def write(self, groups: int) -> list[Node]:
        of = self._of
        leading = self._shapes[of.x][:-1]
        rows = [Ref(size) if isinstance(size, str) else size for size in leading]
        chosen, weights = f"{of.result}.chosen", f"{of.result}.weights"
        for name, source in ((chosen, of.chosen), (weights, of.weights)):
            self._add(name, "aten.reshape.default", source, [*rows, of.choices])
            self._shapes[name] = (*leading, of.choices)
        backs: list[str] = []
        step = -(-of.experts // groups)
        for k, first in enumerate(range(0, of.experts, step)):
            last = min(first + step, of.experts)
            if groups == 1:
                backs.append(self._group(of.x, chosen, weights, first, last))
                break
            sent: dict[str, str] = {}
            for source, name in ((of.x, "x"), (chosen, "chosen"), (weights, "weights")):
                sent[name] = self._add(f"{of.result}.{k}.{name}", SELECT, source, Ref(chosen), first, last)
                self._shapes[sent[name]] = (SOME, self._shapes[source][-1])
            begin = len(self._nodes)
            out = self._group(sent["x"], sent["chosen"], sent["weights"], first, last)
            self._shapes[out] = (SOME, self._width)
            self.parts.append(tuple(node.name for node in self._nodes[begin:]))
            backs.append(self._add(f"{of.result}.{k}.back", SCATTER, out, Ref(chosen), first, last))
        total = backs[0]
        for k, back in enumerate(backs[1:], start=1):
            total = self._add(f"{of.result}.{k}.sum", _ADD, total, Ref(back))
        for name in (*backs, total):
            self._shapes[name] = (*leading, self._width)
        self._add(of.result, "aten.reshape.default", total, [-1, self._width])
        return self._nodes

    def _group(self, x: str, chosen: str, weights: str, first: int, last: int) -> str:
        """What experts first .. last - 1 make of rows that chose some of them, added up, in the rows' places."""
        total = ""
        for expert in range(first, last):
            at = f"{self._of.result}.expert.{expert}"
            back = self._add(
                f"{at}.back", SCATTER, self._expert(at, x, chosen, weights, expert), Ref(chosen), *_one(expert)
            )
            total = back if not total else self._add(f"{at}.sum", _ADD, total, Ref(back))
        return total

    def _expert(self, at: str, x: str, chosen: str, weights: str, expert: int) -> str:
        of, only = self._of, (Ref(chosen), *_one(expert))
        own = self._add(f"{at}.chosen", SELECT, chosen, *only)
        mask = self._add(f"{at}.mask", "aten.eq.Scalar", own, expert)
        every = self._add(f"{at}.weights", SELECT, weights, *only)
        kept = self._add(f"{at}.kept", "aten.where.ScalarOther", mask, Ref(every), 0.0)
        weight = self._add(f"{at}.weight", _SUM, kept, [1], True)
        rows = self._add(f"{at}.x", SELECT, x, *only)
        names = {of.entry: self._product(f"{at}.up", rows, expert, of.up, of.up_bias, of.up_is_turned)}
        for node in of.middle:
            names[node.name] = f"{at}.{node.name}"
            args = tuple(replace_refs(arg, names) for arg in node.args)
            kwargs = {key: replace_refs(arg, names) for key, arg in node.kwargs.items()}
            self._nodes.append(Node(names[node.name], node.op, args, kwargs))
        made = self._product(f"{at}.down", names[of.exit], expert, of.down, of.down_bias, of.down_is_turned)
        return self._add(f"{at}.weighted", "aten.mul.Tensor", made, Ref(weight))

    def _product(self, name: str, rows: str, expert: int, stack: Weight, bias: Weight | None, is_turned: bool) -> str:
        matrix = self._add(f"{name}.matrix", "aten.select.int", _expert(stack, expert), 0, 0)
        made = self._add(name, "aten.mm.default" if is_turned else "aten.linear.default", rows, Ref(matrix))
        return made if bias is None else self._add(f"{name}.biased", _ADD, made, Ref(_expert(bias, expert)))

    def _add(self, name: str, op: str, first: str, *more: Any) -> str:
        self._nodes.append(Node(name, op, (Ref(first), *more)))
        return name


def _one(expert: int) -> tuple[int, int]:
    return expert, expert + 1


def mixtures(program: Program, shapes: Mapping[str, Shape]) -> list[Mixture]:
    """The mixtures of experts of a program, in order."""
    stacks = {w.name: w for w in program.weights if len(w.shape) in (2, 3)}
    gathers: dict[str, list[Node]] = {}
    for node in program.nodes:
        stack = stacks.get(node.args[0].name) if node.op == _GATHER else None
        if stack is not None and len(stack.shape) == 3 and len(node.args[1]) == 1:
            (index,) = refs(node.args[1])
            gathers.setdefault(index, []).append(node)
    if not gathers:
        return []
    finder = _Finder(program, shapes, stacks)
    found = (finder.mixture(index, *pair) for index, pair in gathers.items() if len(pair) == 2)
    return [one for one in found if one is not None]


class _Finder:
    def __init__(self, program: Program, shapes: Mapping[str, Shape], stacks: Mapping[str, Weight]) -> None:
        self._stacks = stacks
        self._nodes = {node.name: node for node in program.nodes}
        self._order = {name: k for k, name in enumerate(self._nodes)}
        self._shapes = shapes
        self._users: dict[str, list[Node]] = {}
        for node in program.nodes:
            for name in dict.fromkeys(node.refs()):
                self._users.setdefault(name, []).append(node)

    def mixture(self, index: str, first: Node, second: Node) -> Mixture | None:
        try:
            return self._mixture(index, first, second)
        except _OtherForm:
            return None

    def _mixture(self, index: str, first: Node, second: Node) -> Mixture:
        up, down = self._product(first), self._product(second)
        up_is_turned, down_is_turned = up.args[0] != Ref(first.name), down.args[0] != Ref(second.name)
        entry, up_bias = self._biased(self._past(up), 1 if up_is_turned else 2, index)
        after, down_bias = self._biased(self._past(down), 1 if down_is_turned else 2, index)
        weighted = self._user(after)
        weights = next((name for name in weighted.refs() if name != after), "")
        total = self._user(self._past(weighted))
        parted = self._nodes.get(total.args[0].name) if total.op == _SUM and total.args[1] == [1] else None
        sizes = parted.args[1] if parted is not None and parted.op == "aten.reshape.default" else []
        if weighted.op != "aten.mul.Tensor" or len(sizes) != 3 or not isinstance(sizes[1], int):
            raise _OtherForm
        source = self._other(down, second.name)
        exit_ = source if source == entry else self._source(source, {entry})
        x = self._source(self._other(up, first.name))
        if self._shapes.get(x) is None:
            raise _OtherForm
        return Mixture(
            x=x,
            chosen=self._source(index),
            weights=self._source(weights),
            choices=sizes[1],
            up=self._stacks[first.args[0].name],
            down=self._stacks[second.args[0].name],
            up_is_turned=up_is_turned,
            down_is_turned=down_is_turned,
            up_bias=up_bias,
            down_bias=down_bias,
            middle=tuple(self._between(entry, exit_)),
            entry=entry,
            exit=exit_,
            result=total.name,
        )

    def _user(self, name: str) -> Node:
        users = self._users.get(name, [])
        if len(users) != 1:
            raise _OtherForm
        return users[0]

    def _product(self, gather: Node) -> Node:
        product = self._user(gather.name)
        if product.op != _BMM:
            raise _OtherForm
        return product

    def _biased(self, name: str, dropped: int, index: str) -> tuple[str, Weight | None]:
        """The value after the bias, each row its expert's, that is added to a product without its dim `dropped`."""
        users, before = self._users.get(name, []), self._nodes[name]
        if len(users) != 1 or users[0].op != _ADD or users[0].kwargs:
            return name, None
        gather = self._nodes.get(next((ref for ref in users[0].refs() if ref != name), ""))
        if gather is None or gather.op != _GATHER or gather.args[1] != [Ref(index)]:
            return name, None
        bias = self._stacks.get(gather.args[0].name)
        if bias is None or len(bias.shape) != 2:
            return name, None
        if before.op != "aten.squeeze.dim" or before.args[1] % 3 != dropped:
            raise _OtherForm  # not a row for each of the bias's
        return self._past(users[0]), bias

    def _other(self, product: Node, gathered: str) -> str:
        return next(name for name in product.refs() if name != gathered)

    def _past(self, node: Node) -> str:
        """The value after the shaping that follows a node."""
        name = node.name
        while len(users := self._users.get(name, [])) == 1 and users[0].op in _SHAPING:
            name = users[0].name
        return name

    def _source(self, name: str, stop: Collection[str] = ()) -> str:
        """The value before the shaping that led to this one; shaping keeps the order of rows."""
        while name not in stop and name in self._nodes and self._nodes[name].op in _SHAPING:
            name = self._nodes[name].args[0].name
        return name

    def _between(self, entry: str, exit_: str) -> list[Node]:
        """What makes `exit_` of `entry` and nothing else, in the program's order."""
        found: dict[str, Node] = {}
        waiting = [exit_]
        while waiting:
            name = waiting.pop()
            if name == entry or name in found:
                continue
            node = self._nodes.get(name)
            before = tuple(node.refs()) if node is not None else ()
            if node is None or not before:
                raise _OtherForm
            found[name] = node
            waiting += before
        return sorted(found.values(), key=lambda node: self._order[node.name])


class _OtherForm(Exception):
    """What gathers weights is no mixture of the known form."""
