"""A program as tasks that each stay under a memory target, at the largest volume that leaves room for weights.

Part of the target is for frames that wait for others (`waiting_bytes`), the rest for weights and activations. How many
positions one call may hold (`volume`) follows from it: the largest halving whose activations take a tenth, and more
where the tasks that come of it leave half of the target.

    program -> experts in groups -> what is too large, by rows -> segments beside or after each other -> tasks of each

Nothing is run or walked here: all sizes follow from types (`courses`). Who writes the tasks down verifies them.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from nodewire.core.heap import uncollected
from nodewire.errors import OverMemory
from nodewire.graph.cut.analysis import FREE_WEIGHT_BYTES, Flow, flow, with_own_outputs
from nodewire.graph.cut.boundaries import chain
from nodewire.graph.cut.carve import Carver, Group, edge_name
from nodewire.graph.cut.courses import Calls, Course, Plan
from nodewire.graph.cut.cut import cut, most_bytes, next_boundary
from nodewire.graph.cut.experts import RewrittenProgram, mixtures, rewrite
from nodewire.graph.cut.rows import EMBEDDING, LINEAR, RowRange, RowSplit, split_rows
from nodewire.graph.cut.segments import Segment, segments
from nodewire.graph.program.liveness import corners, weight_bytes
from nodewire.graph.program.verification import VerifiedProgram
from nodewire.graph.program.whitelist import Ref
from nodewire.protocol.encoding.byte_sizes import at_least, in_units

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import torch

    from nodewire.graph.program.format import Program, Shape

DRIVER = "driver"
_ASIDE = ("embed", "rows", "experts")
MAX_PARTS = 64
SPARE = 10
WAITING_CALLS = 8


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What limited a task: at `node` it takes the most, and with `next_node` it would be above the target.

    `tensors`, `crossing_bytes` in all at the largest sizes, pass to later tasks; `next_node` is empty where the task
    ends for another reason: the model does, or a branch.
    """

    task: str
    node: str
    memory_bytes: int
    next_node: str
    tensors: tuple[str, ...]
    crossing_bytes: int


@dataclass(frozen=True, slots=True)
class Decomposition:
    """Programs by task name, in topological order, and what each takes; `ranges` has the rows that new weights hold."""

    tasks: Mapping[str, VerifiedProgram]
    ranges: Mapping[str, RowRange]
    volume: int
    bottlenecks: tuple[Bottleneck, ...] = ()


def decompose(
    program: Program,
    shapes: Mapping[str, Shape],
    target_bytes: int,
    least_volume: int,
    *,
    expert_groups: int = 1,
) -> Decomposition:
    """A program as tasks that each stay under `target_bytes`, at the largest volume that leaves room for weights.

    The experts of a mixture are in `expert_groups` tasks, or in as many as the target asks, if those are more.

    Raises:
        OverMemory: not even calls of `least_volume` fit; names the node and a target that would do (within 6 %).

    """
    with uncollected():
        return _decompose(_Whole(with_own_outputs(program), shapes, least_volume, expert_groups), target_bytes)


def _decompose(whole: _Whole, target_bytes: int) -> Decomposition:
    def attempt(target: int) -> Decomposition | OverMemory:
        try:
            return whole.under(target)
        except OverMemory as error:
            return error

    found = attempt(target_bytes)
    if isinstance(found, Decomposition):
        return found
    low, high = target_bytes, 2 * max(target_bytes, 1)
    while isinstance(refused := attempt(high), OverMemory):
        found, low, high = refused, high, 2 * high
    while high - low > high // 16:
        middle = (low + high) // 2
        if isinstance(refused := attempt(middle), OverMemory):
            found, low = refused, middle
        else:
            high = middle
    raise OverMemory(found.field, f"needs a target of {at_least(high)}, {in_units(target_bytes)} given") from None


def memory_bytes(task: VerifiedProgram, target_bytes: int) -> int:
    """A task's peak, and room for the frames that wait."""
    return task.peak_bytes + waiting_bytes(task.input_bytes, target_bytes)


def waiting_bytes(input_bytes: int, target_bytes: int) -> int:
    """One call's inputs at least, so that it can ever be complete; a tenth of the target at most, or eight calls'."""
    return max(input_bytes, min(target_bytes // SPARE, WAITING_CALLS * input_bytes))


class _Whole:
    """A program, and what torch has said of it."""

    def __init__(self, program: Program, shapes: Mapping[str, Shape], least_volume: int, groups: int) -> None:
        self._source, self._shapes, self._least = program, shapes, least_volume
        self._calls = Calls()
        self._mixtures = mixtures(program, shapes)
        self._groups = groups
        self._most_groups = max((one.experts for one in self._mixtures), default=1)
        self._rewritten: dict[int, RewrittenProgram] = {}
        self._sized: dict[tuple[int, int], _SizedProgram] = {}

    def under(self, target: int) -> Decomposition:
        """Experts are parted only as far as the target asks."""
        groups = min(self._groups, self._most_groups)
        while True:
            try:
                return self._under(groups, target)
            except OverMemory:
                if groups >= self._most_groups:
                    raise
                least = max(-(-one.nbytes // max(target, 1)) for one in self._mixtures)
                groups = min(max(2 * groups, least), self._most_groups)

    def _under(self, groups: int, target: int) -> Decomposition:
        volume = self._roomy(groups, target)
        while True:
            try:
                return self._larger(self._at(groups, volume, target), groups, target)
            except OverMemory:
                if volume == self._least:
                    raise
                volume = max(self._least, volume // 2)

    def _roomy(self, groups: int, target: int) -> int:
        """The largest halving whose activations take a tenth of the target; the least volume if none does."""
        volumes = [self._source.volume]
        while volumes[-1] > self._least:
            volumes.append(max(self._least, volumes[-1] // 2))

        def fits(volume: int) -> bool:
            return self._at_volume(groups, volume).live_bytes <= target // SPARE

        # What is alive grows with the volume, so few are looked at: the least, the largest, and where it halves.
        if not fits(volumes[-1]):
            return volumes[-1]
        return volumes[0] if fits(volumes[0]) else volumes[bisect_left(volumes, True, key=fits)]

    def _larger(self, found: Decomposition, groups: int, target: int) -> Decomposition:
        """The same tasks for larger calls, while the largest task leaves half of the target."""
        while found.volume < self._source.volume:
            if 2 * max(memory_bytes(task, target) for task in found.tasks.values()) > target:
                break
            try:
                larger = self._at(groups, min(2 * found.volume, self._source.volume), target)
            except OverMemory:
                break
            if len(larger.tasks) > len(found.tasks):
                break
            found = larger
        return found

    def _in_groups(self, groups: int) -> RewrittenProgram:
        if groups not in self._rewritten:
            self._rewritten[groups] = rewrite(self._source, self._shapes, self._mixtures, groups)
        return self._rewritten[groups]

    def _at_volume(self, groups: int, volume: int) -> _SizedProgram:
        if (groups, volume) not in self._sized:
            like = next((sized for (known, _), sized in self._sized.items() if known == groups), None)
            program = replace(self._in_groups(groups).program, volume=volume)
            self._sized[groups, volume] = _SizedProgram(program, self._calls, like)
        return self._sized[groups, volume]

    def _at(self, groups: int, volume: int, target: int) -> Decomposition:
        whole, made = self._at_volume(groups, volume), self._in_groups(groups)
        large = {node.name for node in whole.program.nodes if node.op in (EMBEDDING, LINEAR)}
        to_split: set[str] = set()
        while True:
            try:
                split = _split_rows(whole.program, made, target, to_split, self._calls)
                return _CutSearch(split, whole, target, self._calls).done()
            except OverMemory as error:
                if error.field not in large - to_split:
                    raise
                to_split.add(error.field)


class _SizedProgram:
    """A program with its flow and its courses at the largest sizes."""

    def __init__(
        self, program: Program, calls: Calls, like: _SizedProgram | None = None, sent: Collection[str] = ()
    ) -> None:
        """`like` is the same program at another volume; other tasks send the inputs named in `sent`."""
        self.program = program
        self._like, self._sent = like, sent
        self.plan: Plan = Plan(program, calls) if like is None else like.plan
        self.courses: list[Course] = [calls.course(self.plan, sizes) for sizes in corners(program)]
        self._live = [course.live_bytes for course in self.courses]

    @cached_property
    def flow(self) -> Flow:
        return flow(self.program, self._sent) if self._like is None else replace(self._like.flow, program=self.program)

    @property
    def live_bytes(self) -> int:
        return max(max(live) for live in self._live)

    def dtype(self, name: str) -> torch.dtype:
        """Of a tensor that a node makes."""
        kind = self.courses[0].type(self.plan.number[name])
        assert kind is not None, name
        return kind.dtype

    def peak_node(self) -> str:
        live = max(self._live, key=max)
        return self.program.nodes[min(live.index(max(live)), len(self.program.nodes) - 1)].name

    def verified(self) -> VerifiedProgram:
        arriving = [
            sum(kind.nbytes for v in range(len(self.program.inputs)) if (kind := course.type(v)) is not None)
            for course in self.courses
        ]
        return VerifiedProgram(
            program=self.program,
            weight_bytes=weight_bytes(self.program),
            live_bytes=self.live_bytes,
            input_bytes=max(arriving),
            flops=max(sum(course.flops) for course in self.courses),
        )


class _CutSearch:
    """One way through: a program at one volume, under one target."""

    def __init__(self, split: RewrittenProgram, whole: _SizedProgram, target: int, calls: Calls) -> None:
        self._split, self._target, self._calls = split, target, calls
        self._whole = whole if split.program is whole.program else _SizedProgram(split.program, calls)
        self._carver = self._carver_of(self._whole)

    def done(self) -> Decomposition:
        aside = [Group(name, part) for name, part in self._split.parts.items()]
        beside = {group.name: self._beside(group) for group in aside}
        pieces: dict[str, _Piece] = {}
        counted: dict[str, int] = {}
        for name, sized in self._segments(aside):
            for piece in self._cut(name, counted.get(name, 0), sized):
                pieces[piece.group.name] = piece
                counted[name] = counted.get(name, 0) + 1
        programs = self._carver.tasks([*aside, *(piece.group for piece in pieces.values())])
        tasks: dict[str, VerifiedProgram] = {}
        for name, task in programs.items():
            found = pieces[name].found if name in pieces else beside[name]
            tasks[name] = replace(found, program=task)
        found_there = tuple(piece.bottleneck for piece in pieces.values())
        return Decomposition(_in_order(tasks), self._split.ranges, self._split.program.volume, found_there)

    def _carver_of(self, sized: _SizedProgram) -> Carver:
        return Carver(sized.flow, self._split.shapes, sized.dtype, DRIVER, self._split.program.inputs)

    def _beside(self, group: Group) -> VerifiedProgram:
        task = _SizedProgram(self._carver.alone(group.nodes), self._calls)
        found = task.verified()
        if memory_bytes(found, self._target) > self._target:
            raise OverMemory(task.peak_node(), f"takes {found.peak_bytes} bytes in {group.name}, {self._target} given")
        return found

    def _segments(self, aside: Sequence[Group]) -> Iterable[tuple[str, _SizedProgram]]:
        whole = self._whole
        apart = {whole.flow.number[name] for group in aside for name in group.nodes}
        parts = segments(whole.flow, [course.flops for course in whole.courses], apart, self._split.shapes.keys())
        if len(parts) == 1 and not aside:
            return [(_name(whole.flow, parts[0]), whole)]
        nodes, made = whole.program.nodes, whole.flow.number
        groups = {f"segment.{k}": tuple(nodes[n].name for n in part.nodes) for k, part in enumerate(parts)}
        tasks = self._carver.tasks([*aside, *(Group(name, part) for name, part in groups.items())])
        carved = [tasks[name] for name in groups]
        return [
            (
                _name(whole.flow, part),
                _SizedProgram(task, self._calls, sent={i.name for i in task.inputs if i.name in made}),
            )
            for part, task in zip(parts, carved, strict=True)
        ]

    def _cut(self, name: str, number: int, sized: _SizedProgram) -> list[_Piece]:
        """The tasks of a segment, numbered from `number`."""
        line = chain(sized.flow, sized.courses, self._split.shapes)
        carver = self._carver_of(sized)
        steps = [step.name for step in line.steps]
        # A segment that was carved has no input that it does not use; the whole program may.
        known: dict[tuple[int, int], _SizedProgram] = {} if sized is self._whole else {(0, len(steps)): sized}

        def sized_task(first: int, end: int) -> _SizedProgram:
            if (first, end) not in known:
                known[first, end] = _SizedProgram(carver.alone(steps[first:end]), self._calls)
            return known[first, end]

        def measure(first: int, end: int) -> int:
            return memory_bytes(sized_task(first, end).verified(), self._target)

        def waiting(sent: int) -> int:
            return waiting_bytes(sent, self._target)

        refused: set[tuple[int, int]] = set()
        while True:
            ranges = cut(line, self._target, measure, waiting, refused)
            over = [one for one in ranges if measure(*one) > self._target]
            if not over:
                break
            refused.update(over)
        pieces: list[_Piece] = []
        for k, (first, end) in enumerate(ranges, start=number):
            task = sized_task(first, end)
            further = next_boundary(line, end)
            is_full = further > end and most_bytes(line, first, further, waiting) > self._target
            found = task.verified()
            bottleneck = Bottleneck(
                task=f"{name}.{k}",
                node=task.peak_node(),
                memory_bytes=memory_bytes(found, self._target),
                next_node=steps[end] if is_full else "",
                tensors=tuple(one.name for one in line.crossing[end] or ()),
                crossing_bytes=sum(one.nbytes for one in line.crossing[end] or ()),
            )
            pieces.append(_Piece(Group(f"{name}.{k}", tuple(steps[first:end])), found, bottleneck))
        return pieces


@dataclass(frozen=True, slots=True)
class _Piece:
    group: Group
    found: VerifiedProgram
    bottleneck: Bottleneck


def _name(flow: Flow, segment: Segment) -> str:
    """A name for its tasks: of a branch, the module that has most of its weights, or what it does."""
    if not segment.is_branch:
        return "graph"
    modules: dict[str, int] = {}
    for k in segment.nodes:
        for weight, size in flow.behind[k].items():
            module = weight.partition(".")[0]
            modules[module] = modules.get(module, 0) + size
    if sum(modules.values()) <= FREE_WEIGHT_BYTES:
        return "merge"
    best = max(modules, key=lambda module: modules[module])
    return f"{best}-module" if best in _ASIDE else best


def _in_order(tasks: Mapping[str, VerifiedProgram]) -> dict[str, VerifiedProgram]:
    """The tasks so that each stands after all that send to it, as they stood otherwise."""
    found: dict[str, VerifiedProgram] = {}

    def place(name: str) -> None:
        for declared in tasks[name].program.inputs:
            source = declared.edge.removesuffix(edge_name("", name))
            if source in tasks and source not in found:
                place(source)
        found[name] = tasks[name]

    for name in tasks:
        if name not in found:
            place(name)
    return found


def _split_rows(
    program: Program, made: RewrittenProgram, target: int, chosen: Collection[str], calls: Calls
) -> RewrittenProgram:
    """Split what is chosen by the rows of its weight, and every lookup whose table alone is above the target."""
    parts, ranges, shapes = dict(made.parts), dict(made.ranges), made.shapes
    sizes = {w.name: w.nbytes for w in program.weights}
    given = {i.name for i in program.inputs}
    counted = {"embed": 0, "rows": 0}
    for node in program.nodes:
        if node.op not in (EMBEDDING, LINEAR) or node.name not in shapes:
            continue
        named = [arg.name if isinstance(arg, Ref) else "" for arg in node.args]
        weight, operand = (named[0], named[1]) if node.op == EMBEDDING else (named[1], named[0])
        if weight not in sizes or not (sizes[weight] > target or node.name in chosen):
            continue
        if node.op == EMBEDDING and operand not in given and operand not in flow(program).free_names:
            continue
        if node.op == LINEAR and (operand not in shapes or any(name not in sizes for name in named[2:])):
            continue
        split = _fitting(program, shapes, node.name, sizes[weight], target, calls)
        kind = "embed" if node.op == EMBEDDING else "rows"
        program, shapes = split.program, split.shapes
        ranges.update(split.ranges)
        for part in split.parts:
            parts[f"{kind}.{counted[kind]}"] = part
            counted[kind] += 1
    return RewrittenProgram(program, shapes, parts, ranges)


def _fitting(
    program: Program, shapes: Mapping[str, Shape], name: str, weight_size: int, target: int, calls: Calls
) -> RowSplit:
    """The operator in as few parts as fit.

    Raises:
        OverMemory: none do.

    """
    count = max(2, -(-weight_size // max(target, 1)))
    while count <= MAX_PARTS:
        split = split_rows(program, shapes, name, count)
        dtype = next(w.dtype for w in split.program.weights if w.name in split.ranges)
        dtypes = dict.fromkeys(split.shapes, dtype)
        task = Carver(flow(split.program), split.shapes, dtypes.__getitem__, DRIVER).alone(split.parts[0])
        found = _SizedProgram(task, calls).verified()
        left = target - found.live_bytes - waiting_bytes(found.input_bytes, target)
        if left <= 0:
            raise OverMemory(name, f"takes {found.live_bytes} bytes without its weight, {target} given")
        if found.weight_bytes <= left:
            return split
        count = max(count + 1, -(-weight_size // left))
    raise OverMemory(name, f"its weight of {weight_size} bytes does not fit {MAX_PARTS} tasks of {target}")
