"""Small pools and chains for hypothesis, and what is best on them by trying everything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations

from hypothesis import strategies as st

from nodewire.plan.place.model import Chain, Node, Pool, Stage, Task, turn_ms

times = st.floats(0.1, 20.0, allow_nan=False)


@st.composite
def pools(draw: st.DrawFn, most: int = 4) -> Pool:
    count = draw(st.integers(1, most))
    nodes = tuple(
        Node(f"n{i}", draw(st.integers(0, 30)), speed=draw(st.sampled_from((0.5, 1.0, 3.0))), up=draw(times))
        for i in range(count)
    )
    return Pool(nodes, tuple(tuple(draw(times) for _ in range(count + 1)) for _ in range(count + 1)))


@st.composite
def chains(draw: st.DrawFn, most: int = 5) -> Chain:
    tasks = draw(st.lists(st.tuples(st.integers(1, 12), times, st.integers(0, 30)), min_size=1, max_size=most))
    return Chain(
        tuple(Task(f"t{k}", size, ((1, ms),), out_bytes=out) for k, (size, ms, out) in enumerate(tasks)),
        draw(st.integers(0, 30)),
    )


def fits(pool: Pool, chain: Chain, stage: Stage) -> bool:
    return sum(t.memory_bytes for t in chain.tasks[stage.first : stage.end]) <= pool.nodes[stage.node].memory_bytes


def every_ring(pool: Pool, chain: Chain) -> Iterator[Sequence[Stage]]:
    """All contiguous placements that fit, each node once at most."""
    count, tasks = len(pool.nodes), len(chain.tasks)
    for length in range(1, min(count, tasks) + 1):
        for cuts in combinations(range(1, tasks), length - 1):
            ends = (0, *cuts, tasks)
            for order in permutations(range(count), length):
                stages = [Stage(node, ends[i], ends[i + 1]) for i, node in enumerate(order)]
                if all(fits(pool, chain, stage) for stage in stages):
                    yield stages


def least_turn_ms(pool: Pool, chain: Chain) -> float | None:
    return min((turn_ms(pool, chain, stages) for stages in every_ring(pool, chain)), default=None)
