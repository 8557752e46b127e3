"""Live re-splits: a generation that is under way goes on over another ring, where that is worth it.

A manifest's stages are what can be dealt anew: where neighbouring ones are held by several nodes, another plan of the
same manifest is another division of the layers, and its tokens are the same. Every few seconds the ring's step is
compared with what it was, and the newest epoch's plan with the one under way: so it is noticed alike that a node has
slowed down, and that a quicker node has come. What is worth a move `nodewire.plan.migration` says; whether it was one,
the race (`nodewire.customer.migration.race`).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nodewire.customer.job.retry_policy import without
from nodewire.errors import NodewireError
from nodewire.pay.bond.settlement import share_msat
from nodewire.plan.migration import LEAST_SAVED_S, QUICKER, CurrentRing, Move, RemainingWork, expected, turn_us
from nodewire.protocol.job.plan import LOCAL, Plan, Terms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodewire.customer.job.session import Session
    from nodewire.customer.migration.contender import Contender
    from nodewire.customer.migration.race import Outcome, Race
    from nodewire.protocol.model.manifest import Manifest

MAX_MOVES = 8
"""Of one generation, whatever becomes of them."""
LOOK_S, MAX_LOOK_S = 2.0, 60.0
"""How long after a look another one is taken: twice as long each time that there is nothing to see."""
_EVERY = 4
"""Tokens after which it is thought of."""
_ASK_S = 1.0
_MUCH = 0.5
"""Of a step, what one node's part is if that alone is to blame."""


@dataclass(slots=True)
class Migration:
    """One move.

    `at`: up to which token the other ring was given the text; `overtook_at`: from which token on it leads; `before` and
    `after`: who has each task; the ring that is left takes `step_ms` for a token, of the other `expected_ms` are
    expected.
    """

    at: int
    before: Mapping[str, str]
    after: Mapping[str, str]
    step_ms: float
    expected_ms: float
    slow: tuple[str, ...]
    """Who was left out for being slow."""
    outcome: Outcome | None = None
    overtook_at: int | None = None
    started_ms: float | None = None
    """From the other job's request to its first token: how long nothing would have come, had this one begun anew."""
    request: str = ""


class MovableGeneration(Protocol):
    """A generation, as far as its moves read it."""

    @property
    def session(self) -> Session: ...
    @property
    def manifest(self) -> Manifest: ...
    @property
    def terms(self) -> Terms: ...
    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def positions(self) -> int: ...
    @property
    def moves(self) -> list[Migration]:
        """Its moves add themselves."""

    def remaining(self) -> int:
        """How many tokens are still wanted."""

    def job(self, terms: Terms, patience: int) -> Contender:
        """Another job of the text so far, under these terms; it begins at once."""


class Migrator:
    """Of one generation, which tells it its tokens by `look`."""

    def __init__(self, made: MovableGeneration, race: Race, most_msat: int) -> None:
        """`most_msat`: what all moves may cost beside what the generation would have cost; 0 is none."""
        self._made, self._race, self._left_msat = made, race, most_msat
        self._looking: asyncio.Task[None] | None = None
        self._lead: Contender | None = None
        self._best_s: float | None = None
        """The lead's."""
        self._pause_s, self._next_s = LOOK_S, time.monotonic() + LOOK_S
        self._moves: dict[Contender, Migration] = {}
        self._avoided: set[str] = set()
        """Who did not keep up."""
        self._suspected: set[str] = set()

    def look(self) -> None:
        """A token has come."""
        lead = self._race.lead
        if lead is not self._lead:
            self._lead, self._best_s = lead, None
        step_s = lead.pace.step_s
        if step_s is None or lead.at % _EVERY:
            return
        best_s = self._best_s = step_s if self._best_s is None else min(step_s, self._best_s)
        if self._left_msat <= 0 or len(self._moves) >= MAX_MOVES or self._race.has_second or self._race.is_whole:
            return
        if self._looking is not None:
            if not self._looking.done():
                return
            self._looking.result()
        if self._made.remaining() * step_s > LEAST_SAVED_S and time.monotonic() >= self._next_s:
            self._looking = asyncio.create_task(self._look(lead, step_s, best_s))

    def decided(self, contender: Contender, outcome: Outcome) -> Migration:
        """What became of a second job. Who joined and did not keep up is in none of the next."""
        moved = self._moves[contender]
        moved.outcome = outcome
        if contender.is_begun:
            moved.request = contender.bought.purchase.request.id
            moved.started_ms = round(contender.started_s * 1_000, 1) if contender.started_s else None
        self._pause_s, self._next_s = LOOK_S, time.monotonic() + LOOK_S
        if outcome == "moved":
            moved.overtook_at = len(self._made.ids)
            self._avoided |= {*moved.slow}
        elif outcome != "ended":
            self._avoided |= {*moved.after.values()} - {*moved.before.values()}
        self._made.session.log.info("generation, token %d: another ring: %s", len(self._made.ids), outcome)
        return moved

    async def end(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self, lead: Contender, step_s: float, best_s: float) -> None:
        """See whether there is a ring to go on with, and let it begin."""
        before = {a.task: a.provider for a in lead.bought.purchase.plan.tasks}
        slow = await self._slow(lead, step_s, before) if step_s >= QUICKER * best_s else set()
        terms = without(self._made.terms, self._avoided | slow, 0)
        here = CurrentRing(turn_us(lead.bought.purchase.plan), lead.chunk_msat, step_s, best_s, lead.started_s)
        found = await self._found(lead, terms, before, here)
        self._pause_s = min(2 * self._pause_s, MAX_LOOK_S)
        self._next_s = time.monotonic() + self._pause_s
        if found is None or self._race.lead is not lead or lead.task.done() or self._race.is_whole:
            return
        plan, move, left_msat = found
        self._left_msat -= move.extra_msat
        contender = self._made.job(terms.model_copy(update={"max_total_msat": left_msat}), patience=0)
        after = {a.task: a.provider for a in plan.tasks}
        self._moves[contender] = moved = Migration(
            contender.at, before, after, round(step_s * 1_000, 3), round(move.step_s * 1_000, 3), tuple(sorted(slow))
        )
        self._made.moves.append(moved)
        contender.bought.purchase.is_second = True
        self._race.second(contender, move.overtaking)

    async def _found(
        self, lead: Contender, terms: Terms, before: Mapping[str, str], here: CurrentRing
    ) -> tuple[Plan, Move, int] | None:
        """Another ring under the terms that is worth going to, and what is left of the budget for it."""
        made, planner = self._made, self._made.session.planner
        theirs = planner.terms(terms, lead.bought.purchase.most_units)
        try:
            drawn = await planner.draw(made.manifest, theirs, busy=(), wish=None, patience=0)
        except NodewireError as error:
            made.session.log.debug("no other ring: %s", error)
            return None
        plan = drawn.plan
        if all(before[a.task] == a.provider for a in plan.tasks):
            return None
        ahead = RemainingWork(made.positions, made.remaining(), made.manifest.chunk)
        move = expected(here, turn_us(plan), plan.chunk_msat + share_msat(plan), ahead)
        under_way = sum(contender.most_msat for contender in (lead, *self._race.abandoned))
        left_msat = made.terms.max_total_msat - under_way
        if move is None or move.extra_msat > self._left_msat or move.total_msat > left_msat:
            return None
        return plan, move, left_msat

    async def _slow(self, lead: Contender, step_s: float, assigned: Mapping[str, str]) -> set[str]:
        """Whom to try to do without: who does not answer, or is most of a step by its own word.

        Where nobody is, each once, for one of them does not say how it is.
        """
        running = lead.bought.purchase.running
        asked = sorted({*assigned.values()} - {LOCAL})
        node, ads = self._made.session.node, running.drawn.ads
        said = await asyncio.gather(*(node.pace(p, ads[p].wire, running.request.id, _ASK_S) for p in asked))
        known = {p: us for p, us in zip(asked, said, strict=True) if us is not None}
        if silent := {*asked} - known.keys():
            return silent
        slowest = max(known, key=known.__getitem__, default="")
        if known and known[slowest] >= _MUCH * step_s * 1_000_000:
            return {slowest}
        untold = sorted(known.keys() - self._suspected, key=lambda p: -known[p])
        self._suspected |= {*untold[:1]}
        return {*untold[:1]}
