"""How often to hold every task, and where, so that the rarest is served as fast as possible.

Every node takes one of its layouts, every slice of it one task, at the batch that serves most there and fits. What
counts is the least, over all tasks, of the sum of its replicas' rates: a request needs every task. That is TorchSplit's
programme (its slices, replicas and max-min), with nodes of unlike speed, several layouts, and batches:

    maximise z  with  z <= sum rate[c, s, t] x[c, s, t]   for every task t
                      sum over t of x[c, s, t] <= sum over l of slices(l, s) y[c, l]   for every class c and slice s
                      sum over l of y[c, l] <= nodes(c),    x and y whole

Nodes that are alike are one class, which is what makes it small. `bound` is its linear relaxation. Programmes of up to
`_WHOLE` variables are solved by HiGHS, to the optimum unless `is_optimal` says otherwise; larger ones by giving each
slice, the fastest first, to the neediest task, or by rounding the relaxation, and then moving and swapping replicas.

Qian, Zhang: TorchSplit. CS 6120 course blog, Cornell, 2025.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor
from typing import TYPE_CHECKING, TypeVar

from nodewire.errors import NoProvider
from nodewire.plan.place.solver import Programme, Solution, maximise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodewire.plan.place.model import Node, Task

_WHOLE = 600
_RELAXED = 40_000
_SWAPPED = 300_000
_MOST_MOVES = 20_000
_LEAST = 1e-9

Class = tuple[object, ...]
_Key = TypeVar("_Key")
Slot = tuple[int, int]
"""A class, by its number, and a slice's bytes."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A slice of node number `node` holds task number `task`, serves `batch` items at once, `per_s` in a second."""

    node: int
    slice_bytes: int
    task: int
    batch: int
    per_s: float


@dataclass(frozen=True, slots=True)
class Replication:
    """`per_s` is what every task is served at least, `bound` more than which nobody reaches."""

    replicas: tuple[Replica, ...]
    per_s: float
    bound: float
    is_optimal: bool

    def counts(self) -> Counter[int]:
        """By task, its replicas."""
        return Counter(replica.task for replica in self.replicas)


def best_batch(task: Task, node: Node, slice_bytes: int) -> tuple[int, float]:
    """Of the batches measured that fit into a slice the one that serves most a second, and how many; (0, 0.0): none."""
    table = task.on.get(node.kind, task.ms)
    fitting = [batch for batch, _ in table if task.bytes_at(batch) <= slice_bytes]
    rates = [(1_000 * batch / ms, -batch) for batch in fitting if (ms := task.ms_on(node, batch)) > 0]
    per_s, batch = max(rates, default=(0.0, 0))
    return -batch, per_s


@dataclass(frozen=True)
class _Shop:
    """The classes, what they can be cut into, and how fast every task is in every kind of slice."""

    tasks: Sequence[Task]
    members: list[list[int]]
    """By class, its nodes."""
    layouts: list[tuple[tuple[int, ...], ...]]
    rates: dict[Slot, list[float]]
    batches: dict[Slot, list[int]]

    @classmethod
    def build(cls, nodes: Sequence[Node], tasks: Sequence[Task]) -> _Shop:
        classes: dict[Class, list[int]] = {}
        for index, node in enumerate(nodes):
            classes.setdefault((node.kind, node.speed, node.slices), []).append(index)
        members = list(classes.values())
        shop = cls(tasks, members, [nodes[some[0]].slices for some in members], {}, {})
        for number, some in enumerate(members):
            for size in sorted({size for layout in shop.layouts[number] for size in layout}):
                found = [best_batch(task, nodes[some[0]], size) for task in tasks]
                shop.rates[number, size] = [per_s for _, per_s in found]
                shop.batches[number, size] = [batch for batch, _ in found]
        for number, task in enumerate(tasks):
            if not any(rates[number] for rates in shop.rates.values()):
                raise NoProvider(task.name, "no slice of any node has room for this task")
        return shop

    @cached_property
    def prices(self) -> list[float]:
        """By task, what a unit of its rate is worth if all should be served alike; they sum to 1."""
        means = [sum(rates[task] for rates in self.rates.values()) or 1.0 for task in range(len(self.tasks))]
        total = sum(1 / mean for mean in means)
        return [1 / mean / total for mean in means]

    def worth(self, number: int, layout: Sequence[int]) -> float:
        """The most that one node of a class gives at these prices, cut so."""
        return sum(
            max(p * rate for p, rate in zip(self.prices, self.rates[number, size], strict=True)) for size in layout
        )

    def ceiling(self) -> float:
        """A bound without a solver: at prices that sum to 1, z is at most what all nodes are worth (weak duality)."""
        return sum(
            len(some) * max(self.worth(number, layout) for layout in self.layouts[number])
            for number, some in enumerate(self.members)
        )

    def programme(self) -> tuple[Programme, dict[tuple[Slot, int], int], dict[tuple[int, int], int]]:
        """The programme above, and where its x (by slot and task) and y (by class and layout) are."""
        made = Programme()
        least = made.variable(gain=1.0)
        y = {
            (number, layout): made.variable(most=float(len(self.members[number])), whole=True)
            for number, layouts in enumerate(self.layouts)
            for layout in range(len(layouts))
        }
        x = {
            (slot, task): made.variable(whole=True)
            for slot, rates in self.rates.items()
            for task, rate in enumerate(rates)
            if rate > 0
        }
        for task in range(len(self.tasks)):
            some = [slot for slot in self.rates if (slot, task) in x]
            gains = [-self.rates[slot][task] for slot in some]
            made.row([least, *(x[slot, task] for slot in some)], [1.0, *gains], most=0.0)
        for slot in self.rates:
            number, size = slot
            held = [x[slot, task] for task in range(len(self.tasks)) if (slot, task) in x]
            cut = [y[number, i] for i in range(len(self.layouts[number]))]
            sizes = [-float(layout.count(size)) for layout in self.layouts[number]]
            made.row([*held, *cut], [*[1.0] * len(held), *sizes], most=0.0)
        for number, nodes in enumerate(self.members):
            columns = [y[number, layout] for layout in range(len(self.layouts[number]))]
            made.row(columns, [1.0] * len(columns), most=float(len(nodes)))
        return made, x, y


Held = dict[tuple[Slot, int], int]
"""By slot and task, how many slices of the kind hold it."""


def replicate(nodes: Sequence[Node], tasks: Sequence[Task], *, gap: float = 1e-6, effort: int = 300) -> Replication:
    """The replication. `effort`: nodes of HiGHS's tree for small pools.

    Raises NoProvider: a task fits nowhere, or there are fewer slices than tasks.
    """
    shop = _Shop.build(nodes, tasks)
    programme, x, y = shop.programme()
    relaxed = maximise(programme, relaxed=True) if len(x) <= _RELAXED else None
    cut = _cuts(shop, relaxed, y)
    room = _room(shop, cut)
    starts: list[Held] = [{}]
    if relaxed is not None:
        starts.append({key: floor(relaxed.columns[at] + 1e-6) for key, at in x.items() if relaxed.columns[at] >= 1})
    found = [_dealt(shop, _improved(shop, _given(shop, room, start)), cut) for start in starts]
    best = replace(max(found, key=lambda one: one.per_s), bound=relaxed.value if relaxed else shop.ceiling())
    if len(x) + len(y) <= _WHOLE:
        solved = maximise(programme, gap=gap, nodes=effort)
        made = _dealt(shop, _whole(solved, x), _whole(solved, y))
        better = max(made, best, key=lambda one: one.per_s)
        best = replace(better, bound=min(solved.bound, best.bound), is_optimal=solved.is_optimal)
    if best.per_s <= 0:
        raise NoProvider("nodes", "there is no room for every task at once")
    return best


def torchsplit(nodes: Sequence[Node], tasks: Sequence[Task]) -> Replication:
    """TorchSplit's own rule, as a baseline: every node's first layout, and one item at a time."""
    plain = [replace(node, layouts=node.slices[:1]) for node in nodes]
    single = [replace(task, ms=task.ms[:1], on={kind: table[:1] for kind, table in task.on.items()}) for task in tasks]
    return replicate(plain, single)


def bound(nodes: Sequence[Node], tasks: Sequence[Task]) -> float:
    """The linear relaxation: what no replication exceeds, per second."""
    return maximise(_Shop.build(nodes, tasks).programme()[0], relaxed=True).value


def served(nodes: Sequence[Node], tasks: Sequence[Task], counts: Mapping[int, int]) -> float:
    """What a replication of whole, like slices gives: `counts` of the first node's largest slice for every task."""
    size = max(nodes[0].slices[0])
    return min(counts.get(i, 0) * best_batch(task, nodes[0], size)[1] for i, task in enumerate(tasks))


def _whole(solved: Solution, columns: Mapping[_Key, int]) -> dict[_Key, int]:
    return {key: n for key, at in columns.items() if (n := round(solved.columns[at]))}


def _cuts(shop: _Shop, relaxed: Solution | None, y: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """By class and layout, how many nodes take it: as the relaxation has it, rounded, or what is worth most."""
    cut = {}
    for number, some in enumerate(shop.members):
        layouts = range(len(shop.layouts[number]))
        if relaxed is None or len(layouts) == 1:
            best = max(layouts, key=lambda i: (shop.worth(number, shop.layouts[number][i]), -i))
            cut[number, best] = len(some)
            continue
        wanted = [relaxed.columns[y[number, i]] for i in layouts]
        taken = [floor(n + 1e-6) for n in wanted]
        for i in sorted(layouts, key=lambda i: (taken[i] - wanted[i], i))[: len(some) - sum(taken)]:
            taken[i] += 1
        cut |= {(number, i): n for i, n in enumerate(taken) if n}
    return cut


def _room(shop: _Shop, cut: Mapping[tuple[int, int], int]) -> Counter[Slot]:
    """How many slices of every kind there are."""
    room: Counter[Slot] = Counter()
    for (number, layout), n in cut.items():
        for size in shop.layouts[number][layout]:
            room[number, size] += n
    return room


def _served(shop: _Shop, held: Held) -> list[float]:
    served = [0.0] * len(shop.tasks)
    for (slot, task), n in held.items():
        served[task] += n * shop.rates[slot][task]
    return served


def _given(shop: _Shop, room: Mapping[Slot, int], start: Held) -> Held:
    """Every slice that `start` does not use to the neediest task that it has room for, the fastest slices first."""
    held, left = dict(start), Counter(room)
    for (slot, _), n in start.items():
        left[slot] -= n
    served = _served(shop, held)
    worth = {slot: max(p * rate for p, rate in zip(shop.prices, shop.rates[slot], strict=True)) for slot in left}
    for slot in sorted(left, key=lambda slot: (-worth[slot], slot)):
        rates = shop.rates[slot]
        fitting = [task for task, rate in enumerate(rates) if rate > 0]
        for _ in range(left[slot] if fitting else 0):
            task = min(fitting, key=served.__getitem__)
            held[slot, task] = held.get((slot, task), 0) + 1
            served[task] += rates[task]
    return held


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A slice of `slot` goes from the task `giver` to the neediest one, which may give a slice of `back` for it."""

    slot: Slot
    giver: int
    back: Slot | None = None


def _improved(shop: _Shop, held: Held) -> Held:
    """Until nothing helps the neediest task: a slice of another goes over to it, or two tasks swap slices."""
    held, served = dict(held), _served(shop, held)
    is_small = len(held) * len(shop.rates) <= _SWAPPED

    def give(slot: Slot, a: int, b: int) -> None:
        held[slot, a] -= 1
        if not held[slot, a]:
            del held[slot, a]
        held[slot, b] = held.get((slot, b), 0) + 1
        served[a] -= shop.rates[slot][a]
        served[b] += shop.rates[slot][b]

    for _ in range(_MOST_MOVES):
        needy = served.index(min(served))
        exchange = _best_gift(shop, held, served, needy)
        if exchange is None and is_small:
            exchange = _best_swap(shop, held, served, needy)
        if exchange is None:
            return held
        give(exchange.slot, exchange.giver, needy)
        if exchange.back is not None:
            give(exchange.back, needy, exchange.giver)
    return held


def _best_gift(shop: _Shop, held: Held, served: Sequence[float], needy: int) -> _Exchange | None:
    """The slice whose change of task leaves the worse off of both the most; None: none helps."""
    least = served[needy]
    best = least + _LEAST
    found: _Exchange | None = None
    for slot, a in held:
        rates = shop.rates[slot]
        if a != needy and rates[needy] > 0:
            value = min(served[a] - rates[a], least + rates[needy])
            if value > best:
                best, found = value, _Exchange(slot, a)
    return found


def _best_swap(shop: _Shop, held: Held, served: Sequence[float], needy: int) -> _Exchange | None:
    """As `_best_gift`, where the neediest task gives one of its own slices back."""
    least = served[needy]
    best = least + _LEAST
    found: _Exchange | None = None
    own = [slot for slot, task in held if task == needy]
    for slot, a in held:
        rates = shop.rates[slot]
        for other in own if a != needy and rates[needy] > 0 else ():
            theirs = shop.rates[other]
            if theirs[a] > 0:
                value = min(served[a] - rates[a] + theirs[a], least + rates[needy] - theirs[needy])
                if value > best:
                    best, found = value, _Exchange(slot, a, other)
    return found


def _dealt(shop: _Shop, held: Held, cut: Mapping[tuple[int, int], int]) -> Replication:
    """The counts given to single nodes: layouts by number of node, slices and tasks in their order."""
    waiting: dict[Slot, list[int]] = {}
    for (slot, task), n in sorted(held.items()):
        waiting.setdefault(slot, []).extend([task] * n)
    replicas = []
    for number, some in enumerate(shop.members):
        layouts = [layout for i, layout in enumerate(shop.layouts[number]) for _ in range(cut.get((number, i), 0))]
        for node, layout in zip(some, layouts, strict=False):
            for size in layout:
                slot = number, size
                if waiting.get(slot):
                    task = waiting[slot].pop(0)
                    replicas.append(Replica(node, size, task, shop.batches[slot][task], shop.rates[slot][task]))
    served = [0.0] * len(shop.tasks)
    for replica in replicas:
        served[replica.task] += replica.per_s
    return Replication(tuple(replicas), min(served), min(served), is_optimal=False)
