"""What providers carry from round to round, as their customer keeps account of it: digests, in tickets and results."""

from __future__ import annotations

from nodewire.customer.training import receiving
from nodewire.customer.training.course import Course
from nodewire.nostr import event as events
from nodewire.protocol import delivery

NOTHING = "0" * 64


def left(course: Course, index: int, provider: str) -> str | None:
    """What a provider carries on of a shard: what it said of its result of the round before, if that was accepted."""
    state = course.state
    if not course.recipe.compression.carries or state.works[index].afresh:
        return None
    for debt in state.debts.values():
        if (debt.row.provider, debt.row.index, debt.round) == (provider, index, state.round - 1) and debt.result:
            said = receiving.opened(course, delivery.parse(events.parse(debt.result))).carried
            return None if said == NOTHING else said
    return None
