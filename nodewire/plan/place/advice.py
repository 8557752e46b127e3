"""Which node should hold which tasks of a manifest, what that promises, and what the baselines' placements would.

Small pools get the best that is known here; of more than 64 nodes no baseline is asked, since theirs take minutes.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from nodewire.errors import NoProvider
from nodewire.plan.place import fleet
from nodewire.plan.place.dag import Dag, Link, in_order, latency_ms, least_latency
from nodewire.plan.place.model import (
    CUSTOMER,
    Chain,
    Objective,
    Placement,
    Pool,
    Ring,
    Stage,
    Table,
    Task,
    Tell,
    Workload,
    silent,
)
from nodewire.plan.place.planners import OURS, PLANNERS, predicted
from nodewire.plan.place.rebalance import Balance, Departure, Rules, Tick, step
from nodewire.plan.place.regions import joined, nearest, neighbourly, part
from nodewire.plan.place.replication import Replication, replicate, torchsplit
from nodewire.plan.place.ring_search.ring import EXACT_NODES, Instance
from nodewire.plan.place.ring_search.search import best_ring
from nodewire.plan.place.route import compute_cost, route
from nodewire.plan.place.share import divided, share
from nodewire.protocol.model.manifest import CUSTOMER as OUTSIDE
from nodewire.protocol.model.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from random import Random

_ANCHORS = 6
"""Nodes that are tried for a driver where there are too many to try all."""
_COMPARED = 64
"""Nodes of the largest pool that baselines are asked about, and of the part of one in which a graph is placed."""
REPLANNED = 256
"""What more nodes that hold something would make is minutes' work to add up."""
_SHARED = 20_000
"""Pairs of node and task above which a node holds one task."""
TORCHSPLIT = "torchsplit"
"""Beside the planners of chains: one task for a node or slice, so only where there are as many of these as tasks."""
Held = tuple[tuple[int, ...], ...]
"""By node, the numbers of its tasks."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A planner's placement. `per_s`: positions of a ring, or calls of other models; `turn_ms`: one of them, alone."""

    planner: str
    held: Held
    turn_ms: float
    per_s: float
    is_optimal: bool = False


@dataclass(frozen=True)
class Model:
    """A manifest for planners: `is_ring` if its first task drives the others, which answer it."""

    dag: Dag
    is_ring: bool

    @property
    def stages(self) -> Chain:
        """A ring's tasks without its driver, from whose node the ring begins and ends."""
        line = Dag(self.dag.tasks, tuple(link for link in self.dag.links if CUSTOMER not in (link.source, link.target)))
        chain = line.chain()
        return Chain((*chain.tasks[1:-1], replace(chain.tasks[-1], out_bytes=self._returned())), chain.boundaries[1])

    def _returned(self) -> int:
        return sum(link.bytes for link in self.dag.links if link.back)


def model(manifest: Manifest, measured: Mapping[str, Mapping[str, Table]] | None = None) -> Model:
    """`measured`: by task, tables of nodes of a kind.

    Others' times are the manifest's FLOPs at 1 GFLOP/s, for nodes whose speed is in GFLOP/s. Memory is the manifest's,
    caches for its slots included. Neither is nothing, whatever a stranger's manifest says: rates are divided by both.
    """
    number = {task.name: index for index, task in enumerate(manifest.tasks)} | {OUTSIDE: CUSTOMER}
    tasks = tuple(
        Task(task.name, max(task.memory_bytes, 1), ((1, max(task.flops, 1) / 1e6),), on=_on(measured, task.name))
        for task in manifest.tasks
    )
    links = tuple(
        Link(number[edge.source], number[edge.target], edge.bytes_per_position, edge.back)
        for edge in manifest.edges
        if edge.source != edge.target
    )
    is_ring = manifest.mode == "generate" and len(tasks) > 1
    return Model(Dag(tasks, links), is_ring)


def _on(measured: Mapping[str, Mapping[str, Table]] | None, task: str) -> dict[str, Table]:
    return dict((measured or {}).get(task, {}))


def advise(
    pool: Pool,
    what: Model,
    workload: Workload,
    objective: Objective,
    chance: Random,
    *,
    is_local: bool = False,
    tell: Tell = silent,
) -> list[Advice]:
    """Ours first, then the baselines that find a placement at all.

    `is_local`: the customer drives a ring itself. Raises NoProvider: we find none.
    """
    if what.is_ring:
        return _ring(pool, what, workload, objective, chance, CUSTOMER if is_local else None, tell)
    found = [_graph(pool, what.dag, objective)]
    for name, placement in _baselines(pool, what.dag.chain(), workload, objective, chance, tell):
        found.append(_rated_graph(name, pool, what.dag, _by_node(pool, placement.stages, 0)))
    if len(pool.nodes) <= _COMPARED:
        with suppress(NoProvider):
            found.append(
                _rated_graph(TORCHSPLIT, pool, what.dag, _replicas(pool, torchsplit(pool.nodes, what.dag.tasks)))
            )
    ways = [found[0], *(one for one in found[1:] if one.turn_ms < inf)]
    if objective == "latency":  # of the quickest that are known, the one that also serves most
        level = ways[0].turn_ms * (1 + 1e-9)
        tied = max((one for one in ways if one.turn_ms <= level), key=lambda one: one.per_s)
        ways[0] = replace(ways[0], held=tied.held, per_s=tied.per_s)
    return ways


def moves(
    pool: Pool, what: Model, workload: Workload, objective: Objective, held: Held, *, tell: Tell = silent
) -> Held | None:
    """What nodes that hold some of a ring's tasks should load instead.

    It is what nobody holds, or all of a new plan if it is worth so much more that it is followed (`rebalance`). A new
    plan is not looked at for more than `REPLANNED` nodes.

    None: it is not said, of a model that is no ring, or where tasks that a node holds are no neighbours.
    """
    if not what.is_ring:
        return None
    stages: list[Stage] = []
    for node, tasks in enumerate(held):
        run = [task - 1 for task in sorted(tasks) if task]
        if run and run[-1] - run[0] >= len(run):
            return None
        stages += [Stage(node, run[0], run[-1] + 1)] if run else []
    anchor = next((node for node, tasks in enumerate(held) if 0 in tasks), CUSTOMER)
    chain, pool = what.stages, _without(pool, anchor, what.dag.tasks[0].bytes_at(1))
    sums = chain.summed_bytes()

    def plan(nodes: frozenset[int]) -> Placement:
        some = sorted(nodes)
        if objective == "latency":
            return Placement(best_ring(Instance(pool, chain, tuple(some), anchor=anchor)).stages)
        return joined([(some, fleet.plan(part(pool, some, anchor), chain, workload, objective, tell=tell))])

    def worth(placement: Placement) -> float:
        turn, rate = predicted(pool, chain, workload, placement, anchor)
        return rate if objective == "throughput" else 1 / turn

    def room(node: int, first: int) -> int:
        return bisect_right(sums, sums[first] + pool.nodes[node].memory_bytes) - 1 - first

    rules = Rules(plan, worth, room, len(chain.tasks), rest_ms=0)
    state = Balance(frozenset(range(len(pool.nodes))), tuple(stages))
    for event in (Departure(CUSTOMER, 0), Tick(0)) if len(pool.nodes) <= REPLANNED else (Departure(CUSTOMER, 0),):
        state, _ = step(state, event, rules)
    found = _by_node(pool, state.stages, 1)
    return tuple(tasks if set(tasks) - set(before) else () for tasks, before in zip(found, held, strict=True))


def _baselines(
    pool: Pool, chain: Chain, workload: Workload, objective: Objective, chance: Random, tell: Tell
) -> Iterator[tuple[str, Placement]]:
    """Those that find a placement, of pools that are small enough to wait for them."""
    if len(pool.nodes) > _COMPARED:
        return
    for name, planner in PLANNERS.items():
        if name != OURS:
            tell(f"as {name} would")
            with suppress(NoProvider):
                yield name, planner(pool, chain, workload, objective, chance)


def _ring(
    pool: Pool,
    what: Model,
    workload: Workload,
    objective: Objective,
    chance: Random,
    anchor: int | None,
    tell: Tell,
) -> list[Advice]:
    """`anchor`: who drives, if that is settled; else it is the node with which the quickest ring is quickest.

    There the driver's memory is taken, for the baselines too.
    """
    driver, chain = what.dag.tasks[0], what.stages
    anchors = _anchors(pool, driver) if anchor is None else [anchor]
    rings: list[tuple[float, int, Ring]] = []
    for number, one in enumerate(anchors):
        tell(f"driver {number + 1} of {len(anchors)}")
        with suppress(NoProvider):
            ring = best_ring(Instance(pool, chain, anchor=one, reserved_bytes=driver.bytes_at(1)))
            rings.append((ring.turn_ms + _driving_ms(pool, driver, one), one, ring))
    if not rings:
        raise NoProvider("nodes", "together they have no room for all tasks")
    _, anchor, best = min(rings, key=lambda one: one[:2])
    every = len(pool.nodes) <= EXACT_NODES
    pool = _without(pool, anchor, driver.bytes_at(1))
    placement = Placement(best.stages, (best,))
    if objective == "throughput":
        placement = fleet.plan(pool, chain, workload, objective, anchor=anchor, tell=tell)
    found = []
    for name, made in ((OURS, placement), *_baselines(pool, chain, workload, objective, chance, tell)):
        turn, rate = predicted(pool, chain, workload, made, anchor)
        if turn < inf:
            held = list(_by_node(pool, made.stages, 1))
            if anchor != CUSTOMER:
                held[anchor] = (0, *held[anchor])
            is_optimal = made is placement and objective == "latency" and best.is_optimal and every
            found.append(Advice(name, tuple(held), turn + _driving_ms(pool, driver, anchor), rate, is_optimal))
    return found


def _driving_ms(pool: Pool, driver: Task, anchor: int) -> float:
    return 0.0 if anchor == CUSTOMER else driver.ms_on(pool.nodes[anchor])


def _without(pool: Pool, anchor: int, size: int) -> Pool:
    """The pool with a part of one node's memory taken."""
    if anchor == CUSTOMER:
        return pool
    nodes = list(pool.nodes)
    nodes[anchor] = replace(nodes[anchor], memory_bytes=max(nodes[anchor].memory_bytes - size, 0), layouts=())
    return replace(pool, nodes=tuple(nodes))


def _anchors(pool: Pool, driver: Task) -> list[int]:
    """Nodes with room for the driver; of many, those with the best neighbours."""
    nodes = range(len(pool.nodes))
    able = [i for i in nodes if pool.nodes[i].memory_bytes >= driver.bytes_at(1)]
    if len(pool.nodes) <= EXACT_NODES:
        return able
    near = dict(zip(able, neighbourly(pool, able, _ANCHORS).tolist(), strict=True)) if able else {}
    return sorted(able, key=lambda i: (near[i] + driver.ms_on(pool.nodes[i]), i))[:_ANCHORS]


def _graph(pool: Pool, dag: Dag, objective: Objective) -> Advice:
    if objective == "throughput":
        if len(pool.nodes) * len(dag.tasks) > _SHARED:
            with suppress(NoProvider):  # tasks that find no node of their own may share one
                return _replicated(pool, dag)
        found = share(pool.nodes, dag.tasks)
        held = tuple(tuple(sorted(tasks)) for tasks in found.held)
        return Advice(OURS, held, _quickest(pool, dag, held), found.per_s, found.is_optimal)
    if len(pool.nodes) > _COMPARED:
        some = nearest(pool, dag.chain(), _COMPARED)
        found_there = _graph(part(pool, some), dag, objective)
        of = dict(zip(some, found_there.held, strict=True))
        return replace(found_there, held=tuple(of.get(i, ()) for i in range(len(pool.nodes))), is_optimal=False)
    starts = []
    with suppress(NoProvider):  # tasks that fit in no order may fit as a graph
        ring = best_ring(Instance(pool, dag.chain()))
        starts.append(in_order([(stage.node, stage.first, stage.end) for stage in ring.stages], len(dag.tasks)))
    assigned, ms, is_optimal = least_latency(pool, dag, starts)
    held = tuple(tuple(t for t, node in enumerate(assigned) if node == i) for i in range(len(pool.nodes)))
    return Advice(OURS, held, ms, _per_s(pool, dag, held), is_optimal)


def _replicated(pool: Pool, dag: Dag) -> Advice:
    """One task for every node (or slice of its layout)."""
    found = replicate(pool.nodes, dag.tasks)
    held = _replicas(pool, found)
    return Advice(OURS, held, _quickest(pool, dag, held), found.per_s, found.is_optimal)


def _replicas(pool: Pool, found: Replication) -> Held:
    held: list[set[int]] = [set() for _ in pool.nodes]
    for replica in found.replicas:
        held[replica.node].add(replica.task)
    return tuple(tuple(sorted(some)) for some in held)


def _rated_graph(name: str, pool: Pool, dag: Dag, held: Held) -> Advice:
    return Advice(name, held, _quickest(pool, dag, held), _per_s(pool, dag, held))


def _quickest(pool: Pool, dag: Dag, held: Held) -> float:
    """One call, each task with one of its holders: the quickest way along the tasks' line, as the graph has it."""
    spans = []
    for node, tasks in enumerate(held):
        first = None
        for task in tasks:
            if first is None or task != spans[-1].end:
                spans.append(Stage(node, task, task + 1))
                first = task
            else:
                spans[-1] = replace(spans[-1], end=task + 1)
    chain = dag.chain()
    way = route(pool, chain, spans, compute_cost(pool, chain))
    if way is None:
        return inf
    return latency_ms(pool, dag, in_order([(stage.node, stage.first, stage.end) for stage in way], len(dag.tasks)))


def _per_s(pool: Pool, dag: Dag, held: Held) -> float:
    return divided(pool.nodes, dag.tasks, {(node, task) for node, tasks in enumerate(held) for task in tasks}).per_s


def _by_node(pool: Pool, stages: Sequence[Stage], offset: int) -> Held:
    held: list[tuple[int, ...]] = [()] * len(pool.nodes)
    for stage in stages:
        held[stage.node] = (*held[stage.node], *range(stage.first + offset, stage.end + offset))
    return tuple(held)
