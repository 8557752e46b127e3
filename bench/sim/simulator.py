"""What happens to a trace on a placement, frame by frame: links, uplinks, batches, queues, slots, nodes that go.

A session is admitted when its router finds it a way on which every node has a slot for it; until then it waits, first
come, first served. Its prompt goes through the ring in chunks, then every output position takes one turn, from the
customer around to the customer. A node takes one batch at a time: the frames that wait for the stage which waits
longest, up to `MOST_POSITIONS`. An uplink sends one frame after the other. When a node goes, its sessions lose their
caches: after `DETECT_MS` they look for another way, and what they had so far goes through it as a prompt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from bench.sim.admission import Line, Router, Running, State
from bench.sim.traces import Change, Session
from nodewire.plan.place.model import CUSTOMER, Chain, Placement, Pool, Workload, interpolated

MOST_POSITIONS = 512
DETECT_MS = 500.0


@dataclass(slots=True)
class Frame:
    running: Running
    attempt: int
    stage: int
    positions: int
    is_last: bool


@dataclass
class Result:
    """Times of finished sessions, and how many positions were made when (ms)."""

    finished: list[tuple[Session, float, float]] = field(default_factory=list)
    """Session, time to the first output and to the last, from its arrival."""
    made_ms: list[float] = field(default_factory=list)
    lost: int = 0
    unserved: int = 0

    def tokens_per_s(self, since_ms: float, until_ms: float) -> float:
        return 1_000 * sum(since_ms <= at < until_ms for at in self.made_ms) / (until_ms - since_ms)


class Simulation:
    def __init__(
        self,
        pool: Pool,
        chain: Chain,
        placement: Placement,
        router: Router,
        workload: Workload,
        *,
        replan: Callable[[frozenset[int]], Placement] | None = None,
    ) -> None:
        self.state = State.of(pool, chain, placement, workload)
        self._line = Line(self.state, router)
        self._replan = replan or (lambda gone: placement)
        self._queues: dict[int, deque[Frame]] = {node: deque() for node in self.state.stages}
        self._busy: set[int] = set()
        self._uplink_ms: dict[int, float] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._now = 0.0
        self._active: list[Running] = []
        self._gone: set[int] = set()
        self._step_ms: dict[tuple[int, int, int, int], float] = {}
        self.result = Result()

    def run(
        self, sessions: Sequence[Session], changes: Sequence[Change] = (), until_ms: float = float("inf")
    ) -> Result:
        for session in sessions:
            self._at(session.at_ms, lambda session=session: self._arrive(Running(session)))
        for change in changes:
            self._at(change.at_ms, lambda change=change: self._change(change))
        while self._events and self._events[0][0] <= until_ms:
            self._now, _, act = heappop(self._events)
            act()
        self.result.unserved = len(self._line.waiting) + len(self._active)
        return self.result

    def _at(self, at_ms: float, act: Callable[[], None]) -> None:
        heappush(self._events, (at_ms, next(self._order), act))

    def _arrive(self, running: Running) -> None:
        self._begin(self._line.come(running))

    def _begin(self, admitted: Iterable[Running]) -> None:
        for running in admitted:
            self._active.append(running)
            self._prefill(running, running.session.prompt + running.made)

    def _prefill(self, running: Running, positions: int) -> None:
        chunk = self.state.workload.chunk
        sizes = [chunk] * (positions // chunk) + ([positions % chunk] if positions % chunk else [])
        for index, size in enumerate(sizes):
            self._send(Frame(running, running.attempt, 0, size, index == len(sizes) - 1), CUSTOMER)

    def _send(self, frame: Frame, source: int) -> None:
        """From the node (or the customer) that has it to the frame's next stage, or back to the customer."""
        way, pool = frame.running.way, self.state.pool
        target = way[frame.stage].node if frame.stage < len(way) else CUSTOMER
        if source == target:
            self._receive(frame)
            return
        boundary = way[frame.stage].first if frame.stage < len(way) else len(self.state.chain.tasks)
        positions = frame.positions if frame.stage < len(way) else 1
        sending_ms = self.state.chain.boundaries[boundary] * positions * pool.byte_ms(source, target)
        begin = self._now
        if source != CUSTOMER:
            begin = max(begin, self._uplink_ms.get(source, 0.0))
            self._uplink_ms[source] = begin + sending_ms
        self._at(begin + sending_ms + pool.link_ms(source, target), lambda: self._receive(frame))

    def _receive(self, frame: Frame) -> None:
        running = frame.running
        if frame.attempt != running.attempt:
            return
        if frame.stage == len(running.way):
            if frame.is_last:
                self._turned(running)
            return
        node = running.way[frame.stage].node
        self._queues[node].append(frame)
        self._serve(node)

    def _serve(self, node: int) -> None:
        queue = self._queues[node]
        if node in self._busy or not queue or node in self._gone:
            return
        stage = queue[0].running.way[queue[0].stage] if queue[0].attempt == queue[0].running.attempt else None
        batch, kept, positions = [], deque[Frame](), 0
        while queue:
            frame = queue.popleft()
            if frame.attempt != frame.running.attempt:
                continue
            here = frame.running.way[frame.stage]
            stage = stage or here
            if here == stage and (not batch or positions + frame.positions <= MOST_POSITIONS):
                batch.append(frame)
                positions += frame.positions
            else:
                kept.append(frame)
        self._queues[node] = kept
        if not batch or stage is None:
            return
        key = node, stage.first, stage.end, positions
        if key not in self._step_ms:
            self._step_ms[key] = interpolated(self.state.predictor.table(stage), positions)
        self._busy.add(node)
        self._at(self._now + self._step_ms[key], lambda: self._served(node, batch))

    def _served(self, node: int, batch: list[Frame]) -> None:
        self._busy.discard(node)
        if node in self._gone:
            return
        for frame in batch:
            frame.stage += 1
            if frame.attempt == frame.running.attempt:
                self._send(frame, node)
        self._serve(node)

    def _turned(self, running: Running) -> None:
        running.made += 1
        self.result.made_ms.append(self._now)
        if running.made == 1:
            running.first_ms = self._now - running.session.at_ms
        if running.made < running.session.output:
            self._send(Frame(running, running.attempt, 0, 1, True), CUSTOMER)
            return
        self.result.finished.append((running.session, running.first_ms, self._now - running.session.at_ms))
        self._active.remove(running)
        self._line.leave(running)
        self._begin(self._line.admitted())

    def _change(self, change: Change) -> None:
        node = change.node
        if change.is_there:
            self._gone.discard(node)
        else:
            self._gone.add(node)
            self._queues[node] = deque()
            self.state.stages.pop(node, None)
            for running in [one for one in self._active if any(stage.node == node for stage in one.way)]:
                self._interrupt(running)
        self._at(self._now + DETECT_MS, self._changed)

    def _interrupt(self, running: Running) -> None:
        running.attempt += 1
        self._line.leave(running)
        self._active.remove(running)
        self.result.lost += 1
        self._at(self._now + DETECT_MS, lambda: self._return(running))

    def _return(self, running: Running) -> None:
        self._line.waiting.appendleft(running)
        self._begin(self._line.admitted())

    def _changed(self) -> None:
        """After it was noticed who is there: what the planner says, or else everybody what it held."""
        self._hold(self._replan(frozenset(self._gone)))
        self._begin(self._line.admitted())

    def _hold(self, placement: Placement) -> None:
        """A node that holds something else from now on drops the sessions that it had."""
        wanted = {stage.node: stage for stage in placement.stages if stage.node not in self._gone}
        for node, stage in wanted.items():
            held = self.state.stages.get(node)
            if held == stage:
                continue
            self.state.stages[node] = stage
            self.state.slots[node] = max(self.state.predictor.items(stage), 0)
            for running in [one for one in self._active if any(s.node == node for s in one.way)]:
                self._interrupt(running)
            self.state.sessions[node] = 0
            self._queues.setdefault(node, deque())
        for node in [node for node in self.state.stages if node not in wanted]:
            for running in [one for one in self._active if any(s.node == node for s in one.way)]:
                self._interrupt(running)
            del self.state.stages[node]
