"""nodewire's speculation (`nodewire.llm.speculation`) as a driver of `bench.decode`, over the scripted
drafter."""

from __future__ import annotations

from collections.abc import Sequence

from bench.decode.emulation.cells import Back, Sent
from bench.decode.emulation.truth import Scripted
from nodewire.llm.speculation.in_flight_tree import Flight
from nodewire.llm.speculation.proposer import Candidate
from nodewire.llm.speculation.scheduler import DraftScheduler


class _Drafter:
    """A Drafter (nodewire.llm.speculation.proposer); a guess's rank is its sort."""

    def __init__(self, begin: Scripted) -> None:
        self._root = begin

    def accept(self, token: int) -> None:
        self._root = self._root.then(token)

    def root(self) -> Scripted:
        return self._root

    def after(self, place: Scripted, token: int) -> Scripted:
        return place.then(token)

    def candidates(self, place: Scripted) -> Sequence[Candidate]:
        return [Candidate(token, rank, chance) for rank, (token, chance) in enumerate(place.guesses)]


class Product:
    """A Driver (bench.decode.emulation.arms): what `nodewire.llm.driver` does with what comes back, less the
    arithmetic."""

    def __init__(self, begin: Scripted, lookahead: int) -> None:
        self.tokens = [begin.token]
        self._now_ns = 0
        self._flight = Flight(1, begin.token, lookahead, tree=True, chunk=64)
        self._scheduler = DraftScheduler([_Drafter(begin)], clock_ns=lambda: self._now_ns)

    def start(self, now_ms: float) -> list[Sent]:
        return [Sent(0, 0, tuple(self.tokens))]

    def returned(self, back: Back, now_ms: float) -> list[Sent]:
        self._now_ns = round(now_ms * 1e6)
        flight, scheduler, sent = self._flight, self._scheduler, self._flight.awaited
        assert sent is not None
        scheduler.returned(sent)
        for node, token in zip(sent.nodes, back.tokens, strict=False):
            if node is flight.head:
                scheduler.accept(token, node.guesses)
                flight.accept(token)
                self.tokens.append(token)
        flight.returned()
        flight.grow(scheduler.expand, scheduler.worth, 2**40, scheduler.room(flight))
        frames = flight.frames(scheduler.width)
        scheduler.sent([one for one in frames if one.nodes])
        return [
            Sent(one.seq, one.pos, tuple(node.token for node in one.nodes), one.epoch, one.parents, one.keep)
            for one in frames
        ]
