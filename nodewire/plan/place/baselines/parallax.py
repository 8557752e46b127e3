"""Parallax's placement, as a baseline: pipelines by dynamic programming, then layers by water-filling.

As its layer allocation has it: a node's capacity is the part `PARAMETERS` of its memory. Of all numbers k of disjoint
pipelines that can be built, the one with the greatest k^2 / s(k) is taken, s(k) the least stages in all; a node, in
descending order of capacity, closes or continues an open pipeline, starts one, or is skipped. In each pipeline layers
go by compute under capacity (water-filling, then largest remainders), in order of capacity. Nodes that are left come as
joins do: from the layer with least memory for caches on, as many as they hold.

Where the programme's states are too many, Parallax's other allocator does it: pipelines one after the other, largest
capacity first, the last node of a pipeline the smallest that closes it while another pipeline remains possible.

Tong et al.: Parallax: efficient LLM inference service over decentralized environment. 2025 (arXiv 2509.26182).
"""

from __future__ import annotations

from functools import cache
from math import floor, inf

from nodewire.plan.place.model import Chain, Placement, Pool, Stage

PARAMETERS = 0.5
"""Of a node's memory, for weights."""
MORE_PARAMETERS = 0.8
"""For models whose caches are small: kinder to Parallax than its default in most pools of `bench.sim.place`."""
CACHES = 0.3
MOST_STATES = 20_000


class _TooMany(Exception):
    pass


def parallax(pool: Pool, chain: Chain, *, parameters: float = PARAMETERS) -> Placement:
    """The placement; it takes layers to be alike, and looks neither at links nor at what is asked for."""
    layers = len(chain.tasks)
    each = max(1, chain.typical.memory_bytes)
    capacity = [min(layers, floor(node.memory_bytes * parameters / each)) for node in pool.nodes]
    order = sorted((i for i in range(len(capacity)) if capacity[i]), key=lambda i: (-capacity[i], i))
    sizes = [capacity[i] for i in order]
    try:
        pipelines = _by_programme(sizes, layers)
    except _TooMany:
        pipelines = _greedily(sizes, layers)
    stages: dict[int, Stage] = {}
    for pipeline in pipelines:
        nodes = [order[rank] for rank in pipeline]
        powers = [1 / chain.typical.ms_on(pool.nodes[i], 1_024) for i in nodes]
        start = 0
        for node, count in zip(nodes, water_filled([capacity[i] for i in nodes], powers, layers), strict=True):
            if count:
                stages[node] = Stage(node, start, start + count)
                start += count
    caches = [0.0] * layers
    for stage in stages.values():
        _host(pool, stage, caches)
    for node in order:
        if node not in stages:
            start = min(range(layers), key=caches.__getitem__)
            stages[node] = Stage(node, start, min(layers, start + capacity[node]))
            _host(pool, stages[node], caches)
    return Placement(tuple(stages[node] for node in sorted(stages)))


def _host(pool: Pool, stage: Stage, caches: list[float]) -> None:
    for layer in range(stage.first, stage.end):
        caches[layer] += pool.nodes[stage.node].memory_bytes * CACHES / (stage.end - stage.first)


def water_filled(caps: list[int], powers: list[float], layers: int) -> list[int]:
    """Whole layers in proportion to power, none above its cap; what rounding leaves goes to the largest remainders."""
    low, high = 0.0, max(cap / power for cap, power in zip(caps, powers, strict=True))
    for _ in range(60):
        level = (low + high) / 2
        if sum(min(cap, level * power) for cap, power in zip(caps, powers, strict=True)) >= layers:
            high = level
        else:
            low = level
    target = [min(cap, high * power) for cap, power in zip(caps, powers, strict=True)]
    counts = [min(cap, floor(x)) for cap, x in zip(caps, target, strict=True)]
    by_remainder = sorted(range(len(caps)), key=lambda i: (counts[i] - target[i], i))
    while (left := layers - sum(counts)) > 0:
        for i in [i for i in by_remainder if counts[i] < caps[i]][:left]:
            counts[i] += 1
    return counts


def _by_programme(sizes: list[int], layers: int) -> list[list[int]]:
    """Pipelines as lists of ranks in the order of capacity. Raises _TooMany."""
    most = min(len(sizes), sum(sizes) // layers)
    suffix = [sum(sizes[i:]) for i in range(len(sizes) + 1)]
    best, found = 0.0, []
    for wanted in range(1, most + 1):
        states = [0]

        @cache
        def least(
            i: int, open_: tuple[int, ...], done: int, wanted: int = wanted, states: list[int] = states
        ) -> tuple[float, int]:
            """Stages still needed, and what to do with node i: -1 skip it, -2 start with it, else whom to continue."""
            states[0] += 1
            if states[0] > MOST_STATES:
                raise _TooMany
            if done == wanted and not open_:
                return 0.0, -1
            new = wanted - done - len(open_)
            if (
                i == len(sizes)
                or new < 0
                or suffix[i] < sum(open_) + new * layers
                or len(sizes) - i + done + len(open_) < wanted
            ):
                return inf, -1
            options = [(least(i + 1, open_, done)[0], -1)]
            for j, left in enumerate(open_):
                if not j or open_[j - 1] != left:
                    options.append((1 + least(i + 1, *_continued(open_, j, sizes[i], done))[0], j))
            if new > 0:
                options.append((1 + least(i + 1, *_started(open_, layers - sizes[i], done))[0], -2))
            return min(options, key=lambda option: option[0])

        stages = least(0, (), 0)[0]
        if stages < inf and wanted * wanted / stages > best:
            best, found = wanted * wanted / stages, _followed(sizes, layers, wanted, least)
    return found


def _continued(open_: tuple[int, ...], j: int, size: int, done: int) -> tuple[tuple[int, ...], int]:
    rest = open_[:j] + open_[j + 1 :]
    left = open_[j] - size
    return (tuple(sorted((*rest, left))), done) if left > 0 else (rest, done + 1)


def _started(open_: tuple[int, ...], left: int, done: int) -> tuple[tuple[int, ...], int]:
    return (tuple(sorted((*open_, left))), done) if left > 0 else (open_, done + 1)


def _followed(sizes: list[int], layers: int, wanted: int, least) -> list[list[int]]:  # type: ignore[no-untyped-def]
    finished: list[list[int]] = []
    open_: list[tuple[int, list[int]]] = []
    for i, size in enumerate(sizes):
        if len(finished) == wanted:
            break
        open_.sort(key=lambda one: one[0])
        action = least(i, tuple(left for left, _ in open_), len(finished))[1]
        if action == -1:
            continue
        left, nodes = (layers, []) if action == -2 else open_.pop(action)
        nodes = [*nodes, i]
        if left - size > 0:
            open_.append((left - size, nodes))
        else:
            finished.append(nodes)
    return finished


def _greedily(sizes: list[int], layers: int) -> list[list[int]]:
    left = list(range(len(sizes)))
    pipelines = []
    while sum(sizes[i] for i in left) >= layers:
        room, pipeline, needed = sum(sizes[i] for i in left), [], layers
        while needed > 0:
            closing = [i for i in left if sizes[i] >= needed and room - sizes[i] >= layers]
            node = closing[-1] if closing and room - needed >= layers + 1 else left[0]
            left.remove(node)
            pipeline.append(node)
            needed -= sizes[node]
            room -= sizes[node]
        pipelines.append(sorted(pipeline))
    return pipelines
