"""An oracle's rules and the events that it hears."""

from __future__ import annotations

from nodewire.nostr.event import Event
from nodewire.oracle.committee import rules
from nodewire.oracle.committee.state import Action, State, VerifiedEvent


def fed(state: State, *events: Event) -> tuple[State, list[Action]]:
    """The state after it has received the events, and what it must do for them."""
    actions: list[Action] = []
    for event in events:
        state, more = rules.apply(VerifiedEvent(event), state)
        actions += more
    return state, actions
