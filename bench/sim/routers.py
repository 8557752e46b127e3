"""How sessions find their way: ours, and those of the baselines' own clients and schedulers."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random

from bench.sim.admission import Router, State, Way
from nodewire.plan.place.model import CUSTOMER, Ring, Stage
from nodewire.plan.place.prediction import Predictor
from nodewire.plan.place.route import route

_PETALS_HOP_MS = 18.0
_PETALS_FULL_MS = 10_000.0
_CROWD = 1.0


def ours(state: State) -> Way | None:
    """The quickest way over nodes with a free slot; a node counts the slower, the fuller it is."""
    predictor = state.predictor
    free = [stage for node, stage in state.stages.items() if state.sessions[node] < state.slots[node]]

    def cost(stage: Stage) -> float:
        crowd = state.sessions[stage.node] / max(1, state.slots[stage.node])
        return predictor.table(stage)[0][1] * (1 + _CROWD * crowd)

    return route(state.pool, state.chain, free, cost)


def petals(state: State) -> Way | None:
    """As Petals' client: links, 18 ms a hop, the blocks' times, 10 s where the cache is full; a span to its end."""
    predictor = state.predictor
    tasks = len(state.chain.tasks)
    best: dict[tuple[int, int], tuple[float, tuple[Stage, ...]]] = {}
    by_block = sorted(state.stages.values(), key=lambda stage: (stage.end, stage.node))
    for stage in by_block:
        alone = _alone(state, stage)
        options = [(state.pool.link_ms(CUSTOMER, stage.node), (), 0)] if stage.first == 0 else []
        for (other, end), (ms, way) in best.items():
            if stage.first <= end < stage.end:
                options.append((ms + state.pool.link_ms(other, stage.node), way, end))
        if not options:
            continue
        found = []
        for ms, way, first in options:
            part = Stage(stage.node, first, stage.end)
            found.append((ms + _PETALS_HOP_MS + alone + predictor.table(part)[0][1], (*way, part)))
        best[stage.node, stage.end] = min(found, key=lambda one: one[0])
    ends = [(ms + state.pool.link_ms(node, CUSTOMER), way) for (node, end), (ms, way) in best.items() if end == tasks]
    return _if_free(state, min(ends, key=lambda one: one[0])[1] if ends else None)


def _alone(state: State, stage: Stage) -> float:
    return 0.0 if state.sessions[stage.node] < state.slots[stage.node] else _PETALS_FULL_MS


def parallax(state: State) -> Way | None:
    """As Parallax's scheduler: whole spans that meet exactly, round trips and spans' times; full nodes are left out."""
    predictor = state.predictor
    tasks = len(state.chain.tasks)
    best: dict[int, tuple[float, tuple[Stage, ...]]] = {}
    for stage in sorted(state.stages.values(), key=lambda stage: (stage.first, stage.end, stage.node)):
        if state.sessions[stage.node] >= state.slots[stage.node]:
            continue
        load = 1 + 0.05 * state.sessions[stage.node] / max(1, state.slots[stage.node])
        own = predictor.table(stage)[0][1] * load
        options = [(own, (stage,))] if stage.first == 0 else []
        for other, (ms, way) in best.items():
            if way[-1].end == stage.first:
                options.append((ms + 2 * state.pool.link_ms(other, stage.node) + own, (*way, stage)))
        if options:
            best[stage.node] = min(options, key=lambda one: one[0])
    ends = [(ms, way) for ms, way in best.values() if way[-1].end == tasks]
    return min(ends, key=lambda one: one[0])[1] if ends else None


def at_random(chance: Random) -> Router:
    """Any free node that holds the next task, to its end; None after 20 dead ends."""

    def router(state: State) -> Way | None:
        free = [stage for node, stage in state.stages.items() if state.sessions[node] < state.slots[node]]
        for _ in range(20):
            way: list[Stage] = []
            done = 0
            while done < len(state.chain.tasks):
                holding = [stage for stage in free if stage.first <= done < stage.end]
                if not holding:
                    break
                stage = chance.choice(holding)
                way.append(Stage(stage.node, done, stage.end))
                done = stage.end
            else:
                return tuple(way)
        return None

    return router


def _if_free(state: State, way: Way | None) -> Way | None:
    if way is None or any(state.sessions[stage.node] >= state.slots[stage.node] for stage in way):
        return None
    return way


def along_rings(rings: Sequence[Ring], predictor: Predictor) -> Router:
    """One of the planned rings: where a session more gets the largest share of what the ring makes."""
    rate = [predictor.tokens_per_s(ring.stages) for ring in rings]

    def router(state: State) -> Way | None:
        best, found = 0.0, None
        for ring, per_s in zip(rings, rate, strict=True):
            nodes = [stage.node for stage in ring.stages]
            if any(state.sessions[node] >= state.slots[node] for node in nodes):
                continue
            share = per_s / (1 + max(state.sessions[node] for node in nodes))
            if share > best:
                best, found = share, ring.stages
        return found

    return router


def soonest(rings: Sequence[Ring]) -> Router:
    """The planned ring on which one more session would be over soonest; with none free, the quickest way at all."""
    known: dict[tuple[int, int], float] = {}

    def router(state: State) -> Way | None:
        best, found = inf, None
        for index, ring in enumerate(rings):
            nodes = [stage.node for stage in ring.stages]
            if any(state.sessions[node] >= state.slots[node] for node in nodes):
                continue
            count = 1 + max(state.sessions[node] for node in nodes)
            if (index, count) not in known:
                known[index, count] = count / state.predictor.tokens_per_s(ring.stages, count)
            if known[index, count] < best:
                best, found = known[index, count], ring.stages
        return found or ours(state)

    return router
