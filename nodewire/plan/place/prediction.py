"""How fast a ring turns while it is in use: what planners compare, and what is shown beside a placement.

A stage takes what has arrived while it was busy as its next batch. So at d positions a millisecond, batch b and time s
of a step satisfy b = max(1, d s) and s = ms(b), and a frame that comes in waits for half of the step under way. An
uplink sends frames one after the other; prompts pass in chunks between which decoding frames wait. With `items`
sessions in flight the rate is the one at which a session's turns and its share of a prompt take as long as that rate
says (Little). The simulator of `bench.sim` has all this frame by frame, and `bench.sim.place` says how far they are
apart.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil, inf
from typing import TYPE_CHECKING

from nodewire.plan.place.model import CUSTOMER, Chain, Pool, Stage, Table, Workload, interpolated

if TYPE_CHECKING:
    from collections.abc import Sequence

_STEPS = 24
_MOST_BATCH = 1e6


class Predictor:
    """Predictions for one pool, chain and workload; remembers the stages that it has added up."""

    def __init__(self, pool: Pool, chain: Chain, workload: Workload) -> None:
        self.pool, self.chain, self.workload = pool, chain, workload
        self._tables: dict[tuple[str, float, int, int], Table] = {}
        self._held = chain.summed_bytes(0)
        self._with_item = chain.summed_bytes(1)

    def table(self, stage: Stage) -> Table:
        """The time of a stage by batch."""
        node = self.pool.nodes[stage.node]
        key = node.kind, node.speed, stage.first, stage.end
        if key not in self._tables:
            tasks = self.chain.tasks[stage.first : stage.end]
            batches = sorted({batch for task in tasks for batch, _ in task.on.get(node.kind, task.ms)})
            self._tables[key] = tuple((b, sum(task.ms_on(node, b) for task in tasks)) for b in batches)
        return self._tables[key]

    def items(self, stage: Stage) -> int:
        """Sessions that a node has room for beside the tasks of a stage; negative: not even for the tasks."""
        held = self._held[stage.end] - self._held[stage.first]
        each = self._with_item[stage.end] - self._with_item[stage.first] - held
        left = self.pool.nodes[stage.node].memory_bytes - held
        if left < 0:
            return -1
        return min(left // each, self.workload.most_items) if each else self.workload.most_items

    def step_ms(self, stage: Stage, per_ms: float) -> float:
        """A frame's time at a stage that gets `per_ms` positions; infinite if they are more than it can do."""
        table = self.table(stage)
        batch, step = 1.0, interpolated(table, 1)
        idle = step
        for _ in range(_STEPS):
            wanted = max(1.0, per_ms * step)
            if wanted > _MOST_BATCH:
                return inf
            if abs(wanted - batch) < 1e-3 * batch:
                return step + min(per_ms * idle, 1.0) * step / 2
            batch, step = wanted, interpolated(table, wanted)
        return inf

    def turn_ms(self, stages: Sequence[Stage], per_s: float, anchor: int = CUSTOMER) -> float:
        """One decoding turn of a ring that makes `per_s` output positions a second."""
        work, chain = self.workload, self.chain
        per_ms = per_s / 1_000 * (1 + work.prompt / work.output)
        prompts = work.prompt / (work.prompt + work.output)
        total = 0.0
        for (a, b), boundary in zip(self._way(stages, anchor), self._boundaries(stages), strict=True):
            sent = chain.boundaries[boundary] * self.pool.byte_ms(a, b)
            busy = per_ms * sent
            if busy >= 1:
                return inf
            under_way = sent * (prompts * work.chunk + (1 - prompts))
            total += self.pool.link_ms(a, b) + sent + busy * under_way / 2 / (1 - busy)
        return total + sum(self.step_ms(stage, per_ms) for stage in stages)

    def prefill_ms(self, stages: Sequence[Stage], anchor: int = CUSTOMER) -> float:
        """A prompt alone through the ring, chunk after chunk."""
        work, chain = self.workload, self.chain
        size, chunks = min(work.chunk, work.prompt), ceil(work.prompt / work.chunk)
        through, slowest = 0.0, 0.0
        for (a, b), boundary in zip(self._way(stages, anchor), self._boundaries(stages), strict=True):
            sent = chain.boundaries[boundary] * self.pool.byte_ms(a, b) * (size if boundary < len(chain.tasks) else 1)
            through += self.pool.link_ms(a, b) + sent
            slowest = max(slowest, sent)
        for stage in stages:
            step = interpolated(self.table(stage), size)
            through += step
            slowest = max(slowest, step)
        return through + (chunks - 1) * slowest

    def session_ms(self, stages: Sequence[Stage], per_s: float, anchor: int = CUSTOMER) -> float:
        """From a request to its last output, with `per_s` output positions a second made on the ring."""
        turns = self.workload.output - 1  # the prompt makes the first
        return self.prefill_ms(stages, anchor) + turns * self.turn_ms(stages, per_s, anchor)

    def tokens_per_s(self, stages: Sequence[Stage], items: int | None = None, anchor: int = CUSTOMER) -> float:
        """Output positions a second with `items` sessions in flight (default: as many as there is room for)."""
        count = min(self.items(stage) for stage in stages) if items is None else items
        if count <= 0:
            return 0.0
        made, turns = 1_000 * count * self.workload.output, self.workload.output - 1
        prefill_ms = self.prefill_ms(stages, anchor)

        def per_s(load: float) -> float:
            return made / (prefill_ms + turns * self.turn_ms(stages, load, anchor))

        low, high = 0.0, per_s(0.0)
        for _ in range(_STEPS):
            middle = (low + high) / 2
            if per_s(middle) >= middle:
                low = middle
            else:
                high = middle
        return low

    @staticmethod
    def _way(stages: Sequence[Stage], anchor: int) -> list[tuple[int, int]]:
        return list(pairwise((anchor, *(stage.node for stage in stages), anchor)))

    @staticmethod
    def _boundaries(stages: Sequence[Stage]) -> list[int]:
        return [0, *(stage.end for stage in stages)]
