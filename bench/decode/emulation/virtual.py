"""A ring of `bench.decode` without waiting: the same drivers and stages, by a clock that jumps to what happens
next.

`alone` is for one session whose frames are all computed, in order: when a frame comes back is known when it is sent.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from bench.decode.emulation.arms import Driver
from bench.decode.emulation.cells import Back, Cells, Sent
from bench.decode.emulation.stage import Moving, Stage, times
from bench.decode.emulation.truth import token_of
from bench.tools.wan import SHARD_MS

WAYS_MS = tuple(rtt / 2 for rtt in SHARD_MS.values())
"""One way from the driver to the first stage, on to the next ones, and back."""


@dataclass
class Run:
    """One session: when it begins, how many tokens end it, and when each came."""

    driver: Driver
    tokens: int
    begins_ms: float = 0.0
    came_ms: list[float] = field(default_factory=list)

    @property
    def per_s(self) -> float:
        return (len(self.came_ms) - 1) / (self.came_ms[-1] - self.begins_ms) * 1_000


def turn_ms(stage_ms: float, *, relayed: bool = False) -> float:
    """A row's turn around a ring where nothing else goes round."""
    return _ways_ms(relayed) + (len(WAYS_MS) - 1) * stage_ms


def _ways_ms(relayed: bool) -> float:
    return 2 * sum(WAYS_MS[:-1]) if relayed else sum(WAYS_MS)


def simulate(runs: Sequence[Run], stage_ms: float, *, relayed: bool = False, batches: bool = False) -> None:
    """Let every session come to its end. `relayed`: the last stage's rows come back the way they went."""
    stages = [Stage(stage_ms, batches=batches) for _ in WAYS_MS[1:]]
    _Ring(runs, stages, sum(WAYS_MS[:-1]) if relayed else WAYS_MS[-1]).turn()


class _Ring:
    """Sessions' frames on their way around `stages`, by when they come where. `last_ms`: from the last one home."""

    def __init__(self, runs: Sequence[Run], stages: Sequence[Stage], last_ms: float) -> None:
        self._runs, self._stages, self._last_ms = runs, stages, last_ms
        self._left = len(runs)
        self._number = count()
        self._events: list[tuple[float, int, int, Moving | None]] = []
        """When, in which order, at which stage, and what comes there; None: what it computed."""

    def turn(self) -> None:
        """Until every session has all its tokens."""
        for session, run in enumerate(self._runs):
            run.came_ms.append(run.begins_ms)
            self._send(session, run.driver.start(run.begins_ms), run.begins_ms)
        while self._left:
            now_ms, _, where, what = heapq.heappop(self._events)
            if what is None:
                self._end(where, now_ms)
            elif where == len(self._stages):
                self._come_home(what, now_ms)
            else:
                self._stages[where].come(what)
                if not self._stages[where].computing:
                    self._begin(where, now_ms)

    def _push(self, at_ms: float, where: int, what: Moving | None) -> None:
        heapq.heappush(self._events, (at_ms, next(self._number), where, what))

    def _send(self, session: int, frames: Sequence[Sent], now_ms: float) -> None:
        for one in frames:
            self._push(now_ms + WAYS_MS[0], 0, Moving(session, one, one.tokens))

    def _begin(self, where: int, now_ms: float) -> None:
        took_ms = self._stages[where].begin()
        if took_ms is not None:
            self._push(now_ms + took_ms, where, None)

    def _end(self, where: int, now_ms: float) -> None:
        stage = self._stages[where]
        for one in stage.end():
            way_ms = WAYS_MS[where + 1] if where + 1 < len(self._stages) else self._last_ms
            self._push(now_ms + way_ms, where + 1, one)
        stage.computing = []
        self._begin(where, now_ms)

    def _come_home(self, what: Moving, now_ms: float) -> None:
        run = self._runs[what.session]
        if len(run.came_ms) >= run.tokens:
            return
        frames = run.driver.returned(Back(what.sent.seq, tuple(map(token_of, what.xs))), now_ms)
        run.came_ms += [now_ms] * (len(run.driver.tokens) - len(run.came_ms))
        self._left -= len(run.came_ms) >= run.tokens
        self._send(what.session, frames, now_ms)


def alone(run: Run, stage_ms: float, *, relayed: bool = False) -> None:
    """As `simulate`, with a decoder of one lane (`Truth` of one stage) behind the last stage."""
    free_ms, cells = [0.0] * (len(WAYS_MS) - 1), Cells()
    last_ms = sum(WAYS_MS[:-1]) if relayed else WAYS_MS[-1]
    under_way: deque[tuple[float, Back]] = deque()

    def send(frames: Sequence[Sent], now_ms: float) -> None:
        for sent in frames:
            at_ms, took_ms = now_ms, stage_ms * times(len(sent.tokens)) if sent.tokens else 0.0
            for stage, way_ms in enumerate(WAYS_MS[:-1]):
                at_ms = free_ms[stage] = max(at_ms + way_ms, free_ms[stage]) + took_ms
            back = Back(sent.seq, tuple(map(token_of, cells.rows(sent, sent.tokens))))
            under_way.append((at_ms + last_ms, back))

    run.came_ms.append(run.begins_ms)
    send(run.driver.start(run.begins_ms), run.begins_ms)
    while len(run.came_ms) < run.tokens:
        now_ms, back = under_way.popleft()
        frames = run.driver.returned(back, now_ms)
        run.came_ms += [now_ms] * (len(run.driver.tokens) - len(run.came_ms))
        send(frames, now_ms)
