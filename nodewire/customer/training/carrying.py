"""What providers carry from round to round, as their customer keeps account of it: digests, in tickets and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodewire.customer.training import receiving
from nodewire.customer.training.course import Course
from nodewire.nostr import event as events
from nodewire.protocol import delivery

NOTHING = "0" * 64


def left(course: Course, dealt: Mapping[int, str], indices: Sequence[int]) -> dict[int, str]:
    """What the providers of some shards carry on from the round before, as far as they carry anything."""
    return {index: kept for index in indices if (kept := _left(course, index, dealt[index])) is not None}


def _left(course: Course, index: int, provider: str) -> str | None:
    """What a provider said of its result of the round before, if that was accepted, and in time."""
    state = course.state
    if not course.recipe.compression.carries or state.works[index].afresh:
        return None
    for debt in state.debts.values():
        if (debt.row.provider, debt.row.index, debt.round) == (provider, index, state.round - 1) and debt.result:
            said = receiving.opened(course, delivery.parse(events.parse(debt.result))).carried
            return None if said == NOTHING else said
    return None
