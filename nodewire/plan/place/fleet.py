"""Many rings over one pool: which nodes work together, how many sessions each ring has room for, who holds what.

What a ring makes in a second is the sessions in flight divided by what a turn takes (`predict`), so over a WAN it is
bought with memory for caches and lost to distance. Rings are formed one after the other from the nodes that are left:
for several numbers of sessions the quickest ring with room for them (`search`), and of these

- for throughput the one that makes most per byte of the memory that it takes,
- for latency rings of the one size with which the offered load's sessions are over soonest.

For throughput nodes then go from ring to ring, or change places, as long as a quick guess of the sum grows
(`estimate`). Nodes in no ring hold a second time what fewest sessions have room for. A heuristic: nothing is guaranteed
but that all tasks are held. Pools of more than 64 nodes are planned in parts (`regions`): for throughput all of them,
for latency the nodes near the anchor; and more than 192 for throughput with less care, since a part then takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf, sqrt

from nodewire.errors import NoProvider
from nodewire.plan.place.estimate import SIZES, Estimator
from nodewire.plan.place.model import CUSTOMER, Chain, Objective, Placement, Pool, Ring, Stage, Workload
from nodewire.plan.place.predict import Predictor
from nodewire.plan.place.regions import REGION, SMALL, joined, nearest, part, regions
from nodewire.plan.place.search import best_ring

_ROUNDS, _FEW = 12, 1
_LEAST_GAIN = 1e-3
_WHOLE, _MOST = 64, 192
"""Nodes of a pool that is planned as a whole; of a part of a larger one that serves one place quickly."""
_SPARE = 2.0
"""Standard deviations of sessions in flight that a fleet for low latency has room for beyond the mean."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A ring with what is predicted of it."""

    stages: tuple[Stage, ...]
    items: int
    per_s: float

    @property
    def nodes(self) -> frozenset[int]:
        return frozenset(stage.node for stage in self.stages)


def plan(pool: Pool, chain: Chain, workload: Workload, objective: Objective, *, anchor: int = CUSTOMER) -> Placement:
    """The placement; rings begin and end at `anchor`.

    Raises NoProvider: the pool has no room for the model.
    """
    if len(pool.nodes) <= _WHOLE:
        return _planned(pool, chain, workload, objective, anchor)
    if objective == "throughput":
        is_quick = len(pool.nodes) > _MOST
        for size in (SMALL, REGION) if is_quick else (REGION,):
            parts = []
            for nodes in regions(pool, anchor, size):
                with suppress(NoProvider):
                    near = part(pool, nodes, anchor)
                    parts.append((nodes, _planned(near, chain, workload, objective, CUSTOMER, is_quick=is_quick)))
            if parts:
                return joined(parts)
        raise NoProvider("nodes", "no part of them that is near together has room for all tasks")
    most = min(_MOST, len(pool.nodes))
    for count in (REGION, 2 * REGION, most):
        nodes = nearest(pool, chain, count, anchor)
        with suppress(NoProvider):
            found = _planned(part(pool, nodes, anchor), chain, workload, objective, CUSTOMER)
            if count == most or found.tokens_per_s >= 2 * workload.per_s * workload.output:
                return joined([(nodes, found)])
    raise NoProvider("nodes", f"the {most} nearest have no room for all tasks")


def _planned(
    pool: Pool, chain: Chain, workload: Workload, objective: Objective, anchor: int, *, is_quick: bool = False
) -> Placement:
    fleet = _Fleet(pool, chain, workload, anchor)
    made = fleet.for_latency() if objective == "latency" else fleet.for_throughput(is_quick=is_quick)
    if not made:
        raise NoProvider("nodes", "together they have no room for all tasks")
    extra = fleet.extra(made)
    stages = tuple(sorted((*(stage for one in made for stage in one.stages), *extra), key=lambda stage: stage.node))
    rings = tuple(Ring(one.stages, fleet.predictor.turn_ms(one.stages, 0.0, anchor)) for one in made)
    return Placement(
        stages,
        rings,
        tokens_per_s=sum(one.per_s for one in made),
        turn_ms=min(ring.turn_ms for ring in rings),
    )


class _Fleet:
    def __init__(self, pool: Pool, chain: Chain, workload: Workload, anchor: int) -> None:
        self.pool, self.chain, self.workload, self.anchor = pool, chain, workload, anchor
        self.predictor = Predictor(pool, chain, workload)
        self.estimator = Estimator(pool, chain, workload, anchor)
        self._known: dict[tuple[frozenset[int], int], _Made | None] = {}

    def ring(self, nodes: Iterable[int], items: int) -> _Made | None:
        """The quickest ring among nodes with room for `items` sessions, filled up with as many as it has room for."""
        some = frozenset(nodes)
        key = some, items
        if key not in self._known:
            try:
                found = best_ring(self.pool, self.chain, sorted(some), items=items, anchor=self.anchor)
            except NoProvider:
                self._known[key] = None
            else:
                self._known[key] = self._rated(found.stages)
        return self._known[key]

    def _rated(self, stages: tuple[Stage, ...]) -> _Made:
        items = min(self.predictor.items(stage) for stage in stages)
        return _Made(stages, items, self.predictor.tokens_per_s(stages, items, self.anchor))

    def sizes(self) -> list[int]:
        return [size for size in SIZES if size <= self.workload.most_items]

    def memory(self, made: _Made) -> int:
        return sum(self.pool.nodes[node].memory_bytes for node in made.nodes)

    def for_throughput(self, *, is_quick: bool = False) -> list[_Made]:
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
        return [made for group in improved if (made := self._whole(group)) is not None]

    def _whole(self, nodes: frozenset[int]) -> _Made | None:
        """The ring of a group, with the number of sessions at which most is made."""
        rings = [ring for size in self.sizes() if (ring := self.ring(nodes, size)) is not None]
        return max(rings, key=lambda ring: ring.per_s, default=None)

    def for_latency(self) -> list[_Made]:
        """Rings of the size with which the load's sessions are over soonest, the rest of the nodes more of them, as
        spare. If no size carries the load, the fleet that makes most."""
        crowded = self.for_throughput()
        fleets = [self._of_size(size) for size in self.sizes()]
        rated = [(self._mean_session_ms(made), index, made) for index, made in enumerate([*fleets, crowded]) if made]
        value, _, best = min(rated, default=(inf, 0, crowded), key=lambda one: one[:2])
        return best if value < inf else crowded

    def _session_ms(self, ring: _Made, per_s: float) -> float:
        return self.predictor.session_ms(ring.stages, per_s, self.anchor)

    def _of_size(self, size: int) -> list[_Made]:
        left, made = set(range(len(self.pool.nodes))), []
        while left and (ring := self.ring(left, size)) is not None:
            made.append(ring)
            left -= ring.nodes
        return made

    def _mean_session_ms(self, made: Sequence[_Made]) -> float:
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
                taken = min(taken, 0.8 * ring.per_s / self.workload.output)
                rate = taken * self.workload.output
            total += taken * self._session_ms(ring, rate)
            left -= taken
            if left <= 1e-9:
                return total / self.workload.per_s
        return inf

    def extra(self, made: Sequence[_Made]) -> list[Stage]:
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
        return True

    for _ in range(rounds):
        moved = False
        for a in range(len(parts)):
            for b in range(len(parts)):
                if a == b:
                    continue
                for node in sorted(parts[a]):
                    if node in parts[a]:
                        moved |= gain(a, parts[a] - {node}, b, parts[b] | {node})
                for node in sorted(parts[a]) if a < b else ():
                    for other in sorted(parts[b]):
                        if node in parts[a] and other in parts[b]:
                            moved |= gain(a, parts[a] - {node} | {other}, b, parts[b] - {other} | {node})
        if not moved:
            break
    return [group for group, value in zip(parts[1:], values[1:], strict=True) if value > 0]
