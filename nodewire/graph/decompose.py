"""A program as tasks that each stay under a memory target, at the largest volume that leaves room for weights.

Part of the target is for frames that wait for others (`waiting_bytes`), the rest for weights and activations. How many
positions one call may hold (`volume`) follows from it: the largest halving whose activations take a tenth.

    program -> lookups that are too large, by rows -> segments that run beside or after each other -> tasks of each

Nothing is run or walked here: all sizes follow from types (`courses`). Who writes the tasks down verifies them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from nodewire.errors import OverMemory
from nodewire.graph.analysis import FREE_WEIGHT_BYTES, Flow, flow, with_own_outputs
from nodewire.graph.boundaries import chain
from nodewire.graph.carve import Carver, Group
from nodewire.graph.courses import Calls, Course, Plan
from nodewire.graph.cut import cut, most_bytes, next_boundary
from nodewire.graph.format import Program, Shape
from nodewire.graph.liveness import corners, weight_bytes
from nodewire.graph.rows import EMBEDDING, RowRange, split_rows
from nodewire.graph.segments import segments
from nodewire.graph.verify import Verified
from nodewire.graph.whitelist import Ref

DRIVER = "driver"
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

    def __str__(self) -> str:
        passes = f", passes on {self.crossing_bytes} bytes ({', '.join(self.tensors)})" if self.tensors else ""
        ends = f", ends before {self.next_node}, for which there is no room" if self.next_node else ""
        return f"{self.task}: {self.memory_bytes} bytes, most of them at {self.node}{passes}{ends}"


@dataclass(frozen=True, slots=True)
class Decomposition:
    """Programs by task name, in topological order, and what each takes; `ranges` has the rows that new weights hold."""

    tasks: Mapping[str, Verified]
    ranges: Mapping[str, RowRange]
    volume: int
    bottlenecks: tuple[Bottleneck, ...] = ()


def decompose(program: Program, shapes: Mapping[str, Shape], target_bytes: int, least_volume: int) -> Decomposition:
    """A program as tasks that each stay under `target_bytes`, at the largest volume that leaves room for weights.

    Raises:
        OverMemory: not even calls of `least_volume` fit; names the node and a target that would do (within 6 %).
    """
    whole = _Whole(with_own_outputs(program), shapes, least_volume)

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
    raise OverMemory(found.field, f"needs a target of {high} bytes, {target_bytes} given") from found


def memory_bytes(task: Verified, target_bytes: int) -> int:
    """A task's peak, and room for the frames that wait."""
    return task.peak_bytes + waiting_bytes(task.input_bytes, target_bytes)


def waiting_bytes(input_bytes: int, target_bytes: int) -> int:
    """One call's inputs at least, so that it can ever be complete; a tenth of the target at most, or eight calls'."""
    return max(input_bytes, min(target_bytes // SPARE, WAITING_CALLS * input_bytes))


class _Whole:
    """A program, and what torch has said of it."""

    def __init__(self, program: Program, shapes: Mapping[str, Shape], least_volume: int) -> None:
        self._program, self._shapes, self._least = program, shapes, least_volume
        self._calls = Calls()
        self._sized: dict[int, _Sized] = {}
        self._lookups = {node.name for node in program.nodes if node.op == EMBEDDING}

    def under(self, target: int) -> Decomposition:
        volume = self._program.volume
        while volume > self._least and self._at_volume(volume).live_bytes > target // SPARE:
            volume = max(self._least, volume // 2)
        while True:
            try:
                return self._at(volume, target)
            except OverMemory:
                if volume == self._least:
                    raise
                volume = max(self._least, volume // 2)

    def _at_volume(self, volume: int) -> _Sized:
        if volume not in self._sized:
            like = next(iter(self._sized.values()), None)
            self._sized[volume] = _Sized(replace(self._program, volume=volume), self._calls, like)
        return self._sized[volume]

    def _at(self, volume: int, target: int) -> Decomposition:
        whole = self._at_volume(volume)
        to_split: set[str] = set()
        while True:
            try:
                split = _split_lookups(whole.program, self._shapes, target, to_split, self._calls)
                return _Cutting(split, whole, target, self._calls).done()
            except OverMemory as error:
                if error.field not in self._lookups - to_split:
                    raise
                to_split.add(error.field)


class _Sized:
    """A program with its flow and its courses at the largest sizes."""

    def __init__(self, program: Program, calls: Calls, like: _Sized | None = None, sent: Collection[str] = ()) -> None:
        """`like` is the same program at another volume; other tasks send the inputs named in `sent`."""
        self.program = program
        self._like, self._sent = like, sent
        self.plan = Plan(program, calls) if like is None else like.plan
        self.courses: list[Course] = [calls.course(self.plan, sizes) for sizes in corners(program)]
        self._live = [course.live_bytes for course in self.courses]

    @cached_property
    def flow(self) -> Flow:
        return flow(self.program, self._sent) if self._like is None else replace(self._like.flow, program=self.program)

    @property
    def live_bytes(self) -> int:
        return max(max(live) for live in self._live)

    def peak_node(self) -> str:
        live = max(self._live, key=max)
        return self.program.nodes[live.index(max(live))].name

    def verified(self) -> Verified:
        arriving = [
            sum(kind.nbytes for v in range(len(self.program.inputs)) if (kind := course.type(v)) is not None)
            for course in self.courses
        ]
        return Verified(
            program=self.program,
            weight_bytes=weight_bytes(self.program),
            live_bytes=self.live_bytes,
            input_bytes=max(arriving),
            flops=max(sum(course.flops) for course in self.courses),
        )


class _Cutting:
    """One way through: a program at one volume, under one target."""

    def __init__(self, split: _Split, whole: _Sized, target: int, calls: Calls) -> None:
        self._split, self._target, self._calls = split, target, calls
        self._whole = whole if split.program is whole.program else _Sized(split.program, calls)
        self._carver = self._carver_of(self._whole)

    def done(self) -> Decomposition:
        aside = [Group(f"embed.{k}", part) for k, part in enumerate(self._split.parts)]
        pieces = {piece.group.name: piece for segment in self._segments(aside) for piece in self._cut(*segment)}
        programs = self._carver.tasks([*aside, *(piece.group for piece in pieces.values())])
        tasks: dict[str, Verified] = {}
        for name, task in programs.items():
            found = pieces[name].found if name in pieces else _Sized(task, self._calls).verified()
            tasks[name] = replace(found, program=task)
        found_there = tuple(piece.bottleneck for piece in pieces.values())
        return Decomposition(tasks, self._split.ranges, self._split.program.volume, found_there)

    def _carver_of(self, sized: _Sized) -> Carver:
        course = sized.courses[0]
        names = [*(i.name for i in sized.program.inputs), *(n.name for n in sized.program.nodes)]
        kinds = ((name, course.type(v)) for v, name in enumerate(names))
        dtypes = {name: kind.dtype for name, kind in kinds if kind is not None}
        return Carver(sized.flow, self._split.shapes, dtypes, DRIVER, self._split.program.inputs)

    def _segments(self, aside: Sequence[Group]) -> Iterable[tuple[str, _Sized]]:
        whole = self._whole
        apart = {whole.flow.number[name] for group in aside for name in group.nodes}
        parts = segments(whole.flow, [course.flops for course in whole.courses], apart)
        if len(parts) == 1 and not aside:
            return [("graph", whole)]
        names = _names(whole.flow, parts)
        nodes = whole.program.nodes
        groups = [Group(name, tuple(nodes[k].name for k in part)) for name, part in zip(names, parts, strict=True)]
        tasks = self._carver.tasks([*aside, *groups])
        made = whole.flow.number
        return [
            (name, _Sized(task, self._calls, sent={i.name for i in task.inputs if i.name in made}))
            for name, task in tasks.items()
            if name in names
        ]

    def _cut(self, name: str, sized: _Sized) -> list[_Piece]:
        line = chain(sized.flow, sized.courses, self._split.shapes)
        carver = self._carver_of(sized)
        steps = [step.name for step in line.steps]
        known: dict[tuple[int, int], _Sized] = {}

        def sized_task(first: int, end: int) -> _Sized:
            if (first, end) not in known:
                known[first, end] = _Sized(carver.alone(steps[first:end]), self._calls)
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
        for k, (first, end) in enumerate(ranges):
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
    found: Verified
    bottleneck: Bottleneck


def _names(flow: Flow, parts: Sequence[Sequence[int]]) -> list[str]:
    """A name for each segment: the module that has most of its weights, or what it does."""
    if len(parts) == 1:
        return ["graph"]
    names: list[str] = []
    taken = {"embed": 1}
    for part in parts:
        modules: dict[str, int] = {}
        for k in part:
            for weight, size in flow.behind[k].items():
                module = weight.partition(".")[0]
                modules[module] = modules.get(module, 0) + size
        best = max(modules, key=lambda module: modules[module], default="")
        name = best if sum(modules.values()) > FREE_WEIGHT_BYTES else "merge"
        count = taken[name] = taken.get(name, -1) + 1
        names.append(f"{name}-{count}" if count else name)
    return names


@dataclass(frozen=True, slots=True)
class _Split:
    program: Program
    shapes: Mapping[str, Shape]
    parts: Sequence[tuple[str, ...]]
    ranges: Mapping[str, RowRange]


def _split_lookups(
    program: Program, shapes: Mapping[str, Shape], target: int, chosen: Collection[str], calls: Calls
) -> _Split:
    """Split every lookup that is chosen, or whose table alone is above the target, into as few parts as fit."""
    parts: list[tuple[str, ...]] = []
    ranges: dict[str, RowRange] = {}
    sizes = {w.name: w.nbytes for w in program.weights}
    given = {i.name for i in program.inputs}
    for node in program.nodes:
        if node.op != EMBEDDING or node.name not in shapes:
            continue
        table, ids = (arg.name if isinstance(arg, Ref) else "" for arg in node.args[:2])
        if table not in sizes or not (sizes[table] > target or node.name in chosen):
            continue
        if ids not in given and ids not in flow(program).free_names:
            continue
        for count in range(max(2, -(-sizes[table] // max(target, 1))), MAX_PARTS + 1):
            split = split_rows(program, shapes, node.name, count)
            lookup = Group("embed", split.parts[0])
            task = Carver(flow(split.program), split.shapes, {}, DRIVER).tasks([lookup])["embed"]
            found = _Sized(task, calls).verified()
            room = waiting_bytes(found.input_bytes, target)
            if found.live_bytes + room > target:
                raise OverMemory(node.name, f"takes {found.live_bytes} bytes without its table, {target - room} given")
            if found.peak_bytes + room <= target:
                program, shapes = split.program, split.shapes
                parts += split.parts
                ranges.update(split.ranges)
                break
        else:
            raise OverMemory(node.name, f"its table of {sizes[table]} bytes does not fit {MAX_PARTS} tasks of {target}")
    return _Split(program, shapes, parts, ranges)
