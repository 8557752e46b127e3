"""Many rings over one pool: which nodes work together, how many sessions each ring has room for, who holds what.

What a ring makes in a second is the sessions in flight divided by what a turn takes (`prediction`), so over a WAN it is
bought with memory for caches and lost to distance. Rings are formed one after the other from the nodes that are left:
for several numbers of sessions the quickest ring with room for them (`search`), and of these

- for throughput the one that makes most per byte of the memory that it takes,
- for latency rings of the one size with which the offered load's sessions are over soonest.

For throughput nodes then go from ring to ring, or change places, as long as a quick guess of the sum grows
(`estimate`); of each ring the one whose stages are as level as its nodes allow is tried beside the quickest, and the
other way around. Nodes in no ring hold a second time what fewest sessions have room for. A heuristic: nothing is
guaranteed but that all tasks are held. Pools of more than 64 nodes are planned in parts (`regions`): for throughput all
of them, for latency the nodes near the anchor; and more than 192 for throughput with less care.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import permutations
from math import inf, sqrt
from typing import TYPE_CHECKING

from nodewire.errors import NoProvider
from nodewire.plan.place.model import (
    CUSTOMER,
    Chain,
    Objective,
    Placement,
    Pool,
    Ring,
    Stage,
    Tell,
    Workload,
    silent,
)
from nodewire.plan.place.prediction import Predictor
from nodewire.plan.place.regions import REGION, SMALL, joined, nearest, part, regions
from nodewire.plan.place.ring_search.estimate import SIZES, Estimator
from nodewire.plan.place.ring_search.ring import Instance
from nodewire.plan.place.ring_search.search import best_ring

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_ROUNDS, _FEW = 12, 1
_LEAST_GAIN = 1e-3
_MOST_SWAPPED = 200_000
"""Nodes in all rings that are one swap between two from these: longer rings change by single nodes only."""
_WHOLE, _MOST = 64, 192
"""Nodes of a pool that is planned as a whole; of a part of a larger one that serves one place quickly."""
_SPARE = 2.0
"""Standard deviations of sessions in flight that a fleet for low latency has room for beyond the mean."""


@dataclass(frozen=True, slots=True)
class _RingCapacity:
    """A ring with the sessions that it has room for."""

    stages: tuple[Stage, ...]
    items: int

    @property
    def nodes(self) -> frozenset[int]:
        return frozenset(stage.node for stage in self.stages)


def plan(
    pool: Pool,
    chain: Chain,
    workload: Workload,
    objective: Objective,
    *,
    anchor: int = CUSTOMER,
    tell: Tell = silent,
) -> Placement:
    """The placement; rings begin and end at `anchor`.

    Raises NoProvider: the pool has no room for the model.
    """
    if len(pool.nodes) <= _WHOLE:
        return _planned(pool, chain, workload, objective, anchor)
    if objective == "throughput":
        is_quick = len(pool.nodes) > _MOST
        for size in _sizes(len(pool.nodes), SMALL if is_quick else REGION):
            parts = []
            split = regions(pool, anchor, size)
            for number, nodes in enumerate(split):
                tell(f"part {number + 1} of {len(split)}, {len(nodes)} nodes")
                with suppress(NoProvider):
                    near = part(pool, nodes, anchor)
                    parts.append((nodes, _planned(near, chain, workload, objective, CUSTOMER, is_quick=is_quick)))
            if parts:
                return joined(parts)
        raise NoProvider("nodes", "together they have no room for all tasks")
    most = min(_MOST, len(pool.nodes))
    for count in (REGION, 2 * REGION, most):
        tell(f"the nearest {count} nodes")
        nodes = nearest(pool, chain, count, anchor)
        with suppress(NoProvider):
            found = _planned(part(pool, nodes, anchor), chain, workload, objective, CUSTOMER)
            if count == most or found.tokens_per_s >= 2 * workload.per_s * workload.output:
                return joined([(nodes, found)])
    raise NoProvider("nodes", f"the {most} nearest have no room for all tasks")


def _sizes(count: int, least: int) -> Iterator[int]:
    """Of parts, ever larger, as far as there is more than one part; then the whole."""
    while least < count:
        yield least
        least *= 2
    yield count


def _planned(
    pool: Pool, chain: Chain, workload: Workload, objective: Objective, anchor: int, *, is_quick: bool = False
) -> Placement:
    fleet = _Fleet(pool, chain, workload, anchor)
    made = fleet.for_latency() if objective == "latency" else fleet.for_throughput(is_quick=is_quick)
    if not made:
        raise NoProvider("nodes", "together they have no room for all tasks")
    extra = fleet.extra(made)  # noqa: S610 - no Django
    stages = tuple(sorted((*(stage for one in made for stage in one.stages), *extra), key=lambda stage: stage.node))
    rings = tuple(Ring(one.stages, fleet.predictor.turn_ms(one.stages, 0.0, anchor)) for one in made)
    return Placement(
        stages,
        rings,
        tokens_per_s=sum(fleet.per_s(one) for one in made),
        turn_ms=min(ring.turn_ms for ring in rings),
    )


class _Fleet:
    def __init__(self, pool: Pool, chain: Chain, workload: Workload, anchor: int) -> None:
        self.pool, self.chain, self.workload, self.anchor = pool, chain, workload, anchor
        self.predictor = Predictor(pool, chain, workload)
        self.estimator = Estimator(pool, chain, workload, anchor)
        self._known: dict[tuple[frozenset[int], int, float], _RingCapacity | None] = {}
        self._rates: dict[_RingCapacity, float] = {}
        alone = [task.ms_on(pool.nodes[0]) for task in chain.tasks]
        self._uneven = max(alone) * len(alone) / sum(alone)

    def ring(self, nodes: Iterable[int], items: int, stage_ms: float = inf) -> _RingCapacity | None:
        """The quickest ring among nodes with room for `items` sessions, filled up with as many as it has room for."""
        some = frozenset(nodes)
        key = some, items, stage_ms
        if key not in self._known:
            try:
                instance = Instance(self.pool, self.chain, tuple(sorted(some)), items, self.anchor, stage_ms=stage_ms)
                found = best_ring(instance)
            except NoProvider:
                self._known[key] = None
            else:
                self._known[key] = self._with_room(found.stages)
        return self._known[key]

    def _with_room(self, stages: tuple[Stage, ...]) -> _RingCapacity:
        return _RingCapacity(stages, min(self.predictor.items(stage) for stage in stages))

    def per_s(self, made: _RingCapacity) -> float:
        """Predicted, as full as it has room."""
        if made not in self._rates:
            self._rates[made] = self.predictor.tokens_per_s(made.stages, made.items, self.anchor)
        return self._rates[made]

    def sizes(self) -> list[int]:
        """The numbers of sessions to try; with room that no session takes, the largest only."""
        sizes = [size for size in SIZES if size <= self.workload.most_items]
        return sizes if any(task.item_bytes for task in self.chain.tasks) else sizes[-1:]

    def memory(self, made: _RingCapacity) -> int:
        return max(1, sum(self.pool.nodes[node].memory_bytes for node in made.nodes))

    def for_throughput(self, *, is_quick: bool = False) -> list[_RingCapacity]:
        """Rings one after the other, each with the most per byte; then changed while the estimate of all grows.

        `is_quick`: after the first ring only numbers of sessions next to the last ring's are tried, and few changes.
        """
        left = set(range(len(self.pool.nodes)))
        groups: list[frozenset[int]] = []
        sizes = self.sizes()
        tried = sizes
        while left:
            rings = [(ring, size) for size in tried if (ring := self.ring(left, size)) is not None]
            if not rings and len(tried) < len(sizes):
                tried = sizes
                continue
            if not rings:
                break
            best, size = max(rings, key=lambda one: self.estimator.per_s(one[0].nodes) / self.memory(one[0]))
            groups.append(best.nodes)
            left -= best.nodes
            if is_quick:
                tried = sizes[max(0, sizes.index(size) - 1) : sizes.index(size) + 2]
        improved = _improved(self.estimator, groups, frozenset(left), _FEW if is_quick else _ROUNDS)
        made = [ring for group in improved if (ring := self._whole(group)) is not None]
        return made or [ring for group in groups if (ring := self._whole(group)) is not None]

    def _whole(self, nodes: frozenset[int]) -> _RingCapacity | None:
        """The ring of a group, with the number of sessions at which most is made.

        It is the quickest, or the one that gives every node as much as it can do in the same time.
        """
        rings = [
            ring
            for size in self.sizes()
            for stage_ms in (inf, self._level_ms(nodes, size))
            if (ring := self.ring(nodes, size, stage_ms)) is not None
        ]
        both = [made for ring in rings for made in (ring, self._backwards(ring)) if made.items > 0]
        return max(both, key=self.per_s, default=None)

    def _level_ms(self, nodes: Iterable[int], items: int) -> float:
        """The least time in which nodes take all tasks among them, each as far as it has room, as if tasks were alike.

        And so much more as they are not. Infinite: there is no room.
        """
        tasks, each = len(self.chain.tasks), self.chain.summed_bytes(items)[-1]
        unit, room = [], []
        for node in (self.pool.nodes[i] for i in nodes):
            unit.append(self.chain.summed_ms(node)[-1] / tasks)
            room.append(min(tasks, node.memory_bytes * tasks // each) if each else tasks)
        if sum(room) < tasks:
            return inf
        times = sorted({count * ms for ms, most in zip(unit, room, strict=True) for count in range(1, most + 1)})

        def taken(ms: float) -> int:
            able = ms * (1 + 1e-9)
            return sum(min(most, int(able / one)) for one, most in zip(unit, room, strict=True))

        return times[bisect_left(times, tasks, key=taken)] * self._uneven

    def _backwards(self, ring: _RingCapacity) -> _RingCapacity:
        """The other way around: often as quick alone, but a prompt's bytes pass all lines but the last."""
        tasks = len(self.chain.tasks)
        stages = (Stage(stage.node, tasks - stage.end, tasks - stage.first) for stage in reversed(ring.stages))
        return self._with_room(tuple(stages))

    def for_latency(self) -> list[_RingCapacity]:
        """Rings of the size with which the load's sessions are over soonest.

        The rest of the nodes make more of them, as spare. If no size carries the load, the fleet that makes most.
        """
        crowded = self.for_throughput()
        fleets = [self._of_size(size) for size in self.sizes()]
        rated = [(self._mean_session_ms(made), index, made) for index, made in enumerate([*fleets, crowded]) if made]
        value, _, best = min(rated, default=(inf, 0, crowded), key=lambda one: one[:2])
        return best if value < inf else crowded

    def _session_ms(self, ring: _RingCapacity, per_s: float) -> float:
        return self.predictor.session_ms(ring.stages, per_s, self.anchor)

    def _of_size(self, size: int) -> list[_RingCapacity]:
        left, made = set(range(len(self.pool.nodes))), []
        while left and (ring := self.ring(left, size)) is not None:
            made.append(ring)
            left -= ring.nodes
        return made

    def _mean_session_ms(self, made: Sequence[_RingCapacity]) -> float:
        """The load on the quickest rings first, each as full as Poisson arrivals let it be; infinite: too much."""
        left, total = self.workload.per_s, 0.0
        if not left:
            return self._session_ms(made[0], 0.0)
        for ring in sorted(made, key=lambda ring: self._session_ms(ring, 0.0)):
            alone_ms = self._session_ms(ring, 0.0)
            mean = max(ring.items + _SPARE**2 / 2 - _SPARE * sqrt(ring.items + _SPARE**2 / 4), 0.25 * ring.items)
            taken = min(left, 1_000 * mean / alone_ms)
            rate = taken * self.workload.output
            if self._session_ms(ring, rate) == inf:
                taken = min(taken, 0.8 * self.per_s(ring) / self.workload.output)
                rate = taken * self.workload.output
            total += taken * self._session_ms(ring, rate)
            left -= taken
            if left <= 1e-9:
                return total / self.workload.per_s
        return inf

    def extra(self, made: Sequence[_RingCapacity]) -> list[Stage]:
        """What the nodes in no ring hold: the stage, of those that fit, whose sessions are fewest."""
        used = {node for one in made for node in one.nodes}
        slots = {stage: self.predictor.items(stage) for one in made for stage in one.stages}
        added = []
        for node in sorted(set(range(len(self.pool.nodes))) - used):
            fitting = [
                (slots[stage], stage.first, stage.node, stage)
                for stage in slots
                if self.predictor.items(replace(stage, node=node)) > 0
            ]
            if fitting:
                scarce = min(fitting, key=lambda one: one[:3])[3]
                slots[scarce] += self.predictor.items(replace(scarce, node=node))
                added.append(replace(scarce, node=node))
        return added


def _improved(
    estimator: Estimator, groups: Sequence[frozenset[int]], free: frozenset[int], rounds: int
) -> list[frozenset[int]]:
    """Nodes go elsewhere or change places as long as the sum of the guesses grows. Part 0 is those in no group."""
    parts = [free, *groups]
    values = [0.0, *(estimator.per_s(group) for group in groups)]

    def gain(a: int, new_a: frozenset[int], b: int, new_b: frozenset[int]) -> bool:
        value_a, value_b = (estimator.per_s(new_a) if a else 0.0), (estimator.per_s(new_b) if b else 0.0)
        if value_a + value_b <= values[a] + values[b] + _LEAST_GAIN * (values[a] + values[b]):
            return False
        parts[a], parts[b], values[a], values[b] = new_a, new_b, value_a, value_b
        estimator.learn(_neighbours(parts, {a, b}))
        return True

    estimator.learn(_neighbours(parts, set(range(len(parts)))))
    for _ in range(rounds):
        moved = False
        for a, b in permutations(range(len(parts)), 2):
            for node in sorted(parts[a]):
                if node in parts[a]:
                    moved |= gain(a, parts[a] - {node}, b, parts[b] | {node})
            for node in sorted(parts[a]) if a < b and _may_swap(parts, a, b) else ():
                for other in sorted(parts[b]):
                    if node in parts[a] and other in parts[b]:
                        moved |= gain(a, parts[a] - {node} | {other}, b, parts[b] - {other} | {node})
        if not moved:
            break
    return [group for group, value in zip(parts[1:], values[1:], strict=True) if value > 0]


def _neighbours(parts: Sequence[frozenset[int]], of: set[int]) -> Iterator[frozenset[int]]:
    """What parts become by a move between two of them, one or both among `of`."""
    for a, b in permutations(range(len(parts)), 2):
        if a in of or b in of:
            for node in parts[a]:
                if a:
                    yield parts[a] - {node}
                if b:
                    yield parts[b] | {node}
                if b and _may_swap(parts, a, b):
                    yield from (parts[b] - {other} | {node} for other in parts[b])


def _may_swap(parts: Sequence[frozenset[int]], a: int, b: int) -> bool:
    sizes = len(parts[a]), len(parts[b])
    return sizes[0] * sizes[1] * max(sizes) <= _MOST_SWAPPED
