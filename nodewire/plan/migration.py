"""Whether a generation that is under way should go on over another ring. Pure arithmetic over measured steps and plans.

Plans predict by what providers claim, which is wrong by a factor that the session has seen: the ring that it is on was
predicted to take `turn_us`, and took `best_s` at its best. Another one is expected to be wrong by the same.

While the other ring computes the text so far the first one goes on, so what counts is where the second catches up: it
starts s seconds late and takes e for a token where the first takes T, so after s T / (T - e) seconds. What is left
then is got so much sooner as T - e, and has to be worth the while and the money.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from nodewire.plan.assign import NEXT_FLOOR_MS, NEXT_PER_US

if TYPE_CHECKING:
    from nodewire.protocol.job.plan import Plan

QUICKER = 1.5
"""So many times as quick another ring is expected to be at least: who flaps by less moves nobody."""
LEAST_SAVED_S = 5.0
PREFILL = 0.1
"""What a position of a text that is known takes, of a token's step: many are computed at once."""


@dataclass(frozen=True, slots=True)
class CurrentRing:
    """The ring that a session is on: by its plan, and as it was seen.

    `started_s`: from the request to the first token; `chunk_msat`: with the verification share.
    """

    turn_us: int
    chunk_msat: int
    step_s: float
    best_s: float
    started_s: float


@dataclass(frozen=True, slots=True)
class RemainingWork:
    """What another ring would have to do: `positions` that are known, then `left` tokens, paid by the `chunk`."""

    positions: int
    left: int
    chunk: int

    def chunks(self, tokens: int | None = None) -> int:
        """What all of it is paid as, or only so many of its tokens."""
        return ceil(self.positions / self.chunk) + ceil((self.left if tokens is None else tokens) / self.chunk)


@dataclass(frozen=True, slots=True)
class Move:
    """What is expected of one.

    `overtaking`: tokens that both rings make. `extra_msat`: what it costs more than to stay; `total_msat`: all that the
    other ring can cost.
    """

    step_s: float
    overtaking: int
    saved_s: float
    extra_msat: int
    total_msat: int


def turn_us(plan: Plan) -> int:
    """What a turn of the plan's ring was predicted to take, as its deadline says it (`assign/2`, step 7)."""
    return max((plan.next_result_ms - NEXT_FLOOR_MS) * 1_000 // NEXT_PER_US, 1)


def expected(here: CurrentRing, turn_us: int, chunk_msat: int, ahead: RemainingWork) -> Move | None:
    """What becomes of a session that moves to a ring of such a turn and price; None if that is not worth it."""
    step_s = here.best_s * turn_us / here.turn_us
    if here.step_s < QUICKER * step_s:
        return None
    starts_s = here.started_s + ahead.positions * PREFILL * step_s
    caught_up_s = starts_s * here.step_s / (here.step_s - step_s)
    overtaking = ceil(caught_up_s / here.step_s)
    saved_s = (ahead.left - overtaking) * (here.step_s - step_s)
    if saved_s < LEAST_SAVED_S:
        return None
    stays_msat = here.chunk_msat * ceil((ahead.left - overtaking) / ahead.chunk)
    total_msat = chunk_msat * ahead.chunks()
    return Move(step_s, overtaking, saved_s, max(0, total_msat - stays_msat), total_msat)
