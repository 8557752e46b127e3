"""A ring without torch: stages that know of every row only its path, a text that is a function of its past, drafters
that are wrong on purpose."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from nodewire.llm.speculation.in_flight_tree import Flight, InFlightFrame
from nodewire.llm.speculation.proposer import Candidate
from nodewire.llm.speculation.scheduler import DraftScheduler

Path = int
"""Stands for a path of tokens: the hash of the one before it and its last token."""
ALPHABET = 7


def grown(path: Path, token: int) -> Path:
    return ((path ^ (token + 1)) * 0x9E3779B97F4A7C15 + (path >> 29)) % 2**64


def path_of(tokens: Sequence[int]) -> Path:
    return reduce(grown, tokens, 1)


def following(path: Path) -> int:
    """The one token that follows a path."""
    return (path >> 17) % ALPHABET


def plain(prompt: Sequence[int], count: int) -> list[int]:
    path, text = path_of(prompt), []
    for _ in range(count):
        text.append(following(path))
        path = grown(path, text[-1])
    return text


@dataclass(frozen=True, eq=False)
class Cell:
    path: Path
    parent: Cell | None


class Lane:
    """What a stage keeps of a session: the run, as its paths by length, and the live cells."""

    def __init__(self, prompt: Sequence[int], positions: int) -> None:
        self._positions = positions
        self.run = [path_of(prompt[:n]) for n in range(len(prompt) + 1)]
        self.epoch = 0
        self.cells: list[Cell] = []
        self.most_cells = 0

    def take(self, sent: InFlightFrame) -> list[Path]:
        assert sent.epoch >= self.epoch
        if sent.epoch > self.epoch and not sent.keep:
            self.cells = []
        self.epoch = sent.epoch
        tokens = [node.token for node in sent.nodes]
        if sent.parents is None:
            assert sent.pos < len(self.run)
            del self.run[sent.pos + 1 :]
            for token in tokens:
                self.run.append(grown(self.run[-1], token))
            return self.run[len(self.run) - len(tokens) :]
        before: Cell | None = None
        for number in sent.keep:
            assert self.cells[number].parent is before
            before = self.cells[number]
            self.run.append(before.path)
        if before is not None:
            left: dict[Cell, Cell] = {}
            for cell in self.cells:
                if cell.parent is before:
                    left[cell] = Cell(cell.path, None)
                elif cell.parent in left:
                    left[cell] = Cell(cell.path, left[cell.parent])
            self.cells = list(left.values())
        assert sent.pos == len(self.run) - 1
        for token, number in zip(tokens, sent.parents, strict=True):
            parent = None if number < 0 else self.cells[number]
            self.cells.append(Cell(grown(self.run[-1] if parent is None else parent.path, token), parent))
        assert len(self.run) - 1 + len(self.cells) <= self._positions, "more cells than the lane has"
        self.most_cells = max(self.most_cells, len(self.cells))
        return [cell.path for cell in self.cells[len(self.cells) - len(tokens) :]]


class FakeRing:
    """Frames in, returns out in order. `eager`: how many waiting frames are computed whenever some come; the others are
    when nothing else is left, and dead ones are skipped by then, as far as a stage may know it."""

    def __init__(self, prompt: Sequence[int], count: int, eager: Callable[[], int], *, skips: bool = True) -> None:
        self.lane = Lane(prompt, len(prompt) + count)
        self._eager, self._skips = eager, skips
        self._waiting: deque[InFlightFrame] = deque()
        self._back: deque[tuple[int, list[Path] | None]] = deque()
        self.rows = 0
        self.skipped = 0

    def put(self, frames: Sequence[InFlightFrame]) -> None:
        self._waiting.extend(frames)
        for _ in range(min(self._eager(), len(self._waiting))):
            self._compute()

    def get(self) -> tuple[int, list[Path] | None]:
        if not self._back:
            self._compute()
        return self._back.popleft()

    def _compute(self) -> None:
        sent = self._waiting.popleft()
        later = [one for one in self._waiting if one.epoch > sent.epoch and one.pos <= sent.pos]
        if self._skips and later and not sent.keep:
            self.skipped += 1
            self._back.append((sent.seq, None))
            return
        rows = self.lane.take(sent)
        self.rows += len(rows)
        self._back.append((sent.seq, rows))


def decode(
    flight: Flight,
    ring: FakeRing,
    prompt: Sequence[int],
    count: int,
    expand: Callable,
    *,
    rows: int,
    accepted: Callable[[int, object], None] = lambda token, guesses: None,
    worth: Callable[[float, float, int], bool] = lambda chance, expected, rows: True,
) -> list[int]:
    """`count` tokens, every head's row compared with the accepted text."""
    text, path = [], path_of(prompt)
    last = len(prompt) + count - 2
    pending: tuple[int, list[Path] | None] = (0, [path])
    while True:
        seq, paths = pending
        sent = flight.awaited
        assert sent is not None and sent.seq == seq
        assert paths is not None or not sent.awaited, "a frame that stays was skipped"
        for node, found in zip(sent.nodes, paths or [0] * len(sent.nodes), strict=True):
            if node is flight.head:
                assert found == path, "the head's row was not computed after what is accepted"
                token = following(path)
                accepted(token, node.guesses)
                flight.accept(token)
                text.append(token)
                path = grown(path, token)
                if len(text) == count:
                    return text
        flight.returned()
        flight.grow(expand, worth, last)
        ring.put(flight.frames(rows))
        pending = ring.get()


@dataclass(frozen=True)
class Said:
    token: int
    odds: float


class Liar:
    """Knows the text, and is right as often as it is told to be, at any rank."""

    def __init__(self, text: Sequence[int], right: Callable[[int], bool], width: int, seed: int = 0) -> None:
        self._text, self._right, self._width = list(text), right, width
        self._chance = random.Random(seed)

    def expand(self, node) -> list[Said]:
        """`node.position` is where the text's token stands; what follows it is the next."""
        at = node.position + 1
        truth = self._text[at] if at < len(self._text) else 0
        others = [token for token in range(ALPHABET) if token != truth]
        self._chance.shuffle(others)
        said = others[: self._width]
        if self._right(at):
            said[self._chance.randrange(len(said))] = truth
        odds = [0.6 / 2**rank for rank in range(len(said))]
        return [Said(token, one) for token, one in zip(said, odds, strict=True)]


class RankedDrafter:
    """A Drafter that names five tokens after each; by position the true one stands at the rank that `ranks` says, or is
    not among them (None). Places are positions, and whether the path to them is right. Its priors know nothing."""

    def __init__(self, ranks: Sequence[int | None]) -> None:
        self._ranks = ranks
        self._count = 0

    def accept(self, token: int) -> None:
        self._count += 1

    def root(self) -> tuple[int, bool]:
        return self._count, True

    def after(self, place: tuple[int, bool], token: int) -> tuple[int, bool]:
        return place[0] + 1, place[1] and token == place[0]

    def candidates(self, place: tuple[int, bool]) -> list[Candidate]:
        position, is_right = place
        true = self._ranks[position] if is_right and position < len(self._ranks) else None
        return [Candidate(position if rank == true else -1 - rank, rank, 0.5 / 2**rank) for rank in range(5)]


def rate(
    ranks: Sequence[int | None], *, turn_s: float, stage_s: float, row_s: float, stages: int, lookahead: int, count: int
) -> float:
    """Tokens a second of a ring whose frame of n rows takes every stage stage_s + row_s * (n - 1), one after the other,
    and a single row turn_s in all. The text is 0, 1, 2 ..."""
    now_s = 0.0
    scheduler = DraftScheduler([RankedDrafter(ranks)], clock_ns=lambda: round(now_s * 1e9))
    flight = Flight(1, 0, lookahead, tree=True, chunk=2**40)
    scheduler.accept(0)
    edge_s = (turn_s - stages * stage_s) / (stages + 1)
    free_s = [0.0] * stages
    assert flight.awaited is not None
    back, token = deque([(turn_s, flight.awaited)]), 0
    while token < count:
        now_s, sent = back.popleft()
        scheduler.returned(sent)
        for node in sent.nodes:
            if node is flight.head:
                token += 1
                scheduler.accept(token, node.guesses)
                flight.accept(token)
        flight.returned()
        flight.grow(scheduler.expand, scheduler.worth, 2**40, scheduler.room(flight))
        frames = flight.frames(scheduler.width)
        scheduler.sent(frames)
        for frame in frames:
            at_s = now_s
            for stage in range(stages):
                at_s = max(at_s + edge_s, free_s[stage]) + stage_s + row_s * (len(frame.nodes) - 1)
                free_s[stage] = at_s
            back.append((at_s + edge_s, frame))
    return token / now_s
