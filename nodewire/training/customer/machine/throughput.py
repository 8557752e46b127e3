"""How long results take here: of all, so that it is known how long to wait, and of each provider, for its pace."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodewire.training.customer.machine.events import Row
    from nodewire.training.customer.machine.state import State

KEPT = 256
"""Results by which patience goes; what is older says little of the machines that train now."""
KEPT_EACH = 9
"""Of one provider, by which its pace goes."""


def forgotten(state: State, row: Row, took_ms: int) -> State:
    """The state without what was measured of a result that is none: who delivers rubbish is quick."""
    if not took_ms:
        return state
    step_us = dict(state.step_us)
    mine = _without(step_us.pop(row.provider, ()), took_ms * 1000 // row.steps)
    return replace(
        state,
        took_ms=_without(state.took_ms, took_ms),
        step_us={**step_us, row.provider: mine} if mine else step_us,
    )


def _without(took: tuple[int, ...], one: int) -> tuple[int, ...]:
    """Without the newest of them that is `one`, if it has not gone already."""
    at = len(took) - 1 - took[::-1].index(one) if one in took else len(took)
    return took[:at] + took[at + 1 :]


def measured(state: State, row: Row, took_ms: int) -> State:
    """The state that knows that these steps took so long."""
    mine = (*state.step_us.get(row.provider, ()), took_ms * 1000 // row.steps)[-KEPT_EACH:]
    return replace(state, took_ms=(*state.took_ms, took_ms)[-KEPT:], step_us={**state.step_us, row.provider: mine})
