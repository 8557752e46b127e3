"""What providers say, and when: a customer's state is not bent by who only pretends to work. Pure."""

from __future__ import annotations

import pytest

from nodewire.customer.training.events import (
    Audited,
    Begun,
    Judged,
    Lost,
    Opened,
    Published,
    Received,
    ResultCame,
    Row,
    Sealed,
)
from nodewire.customer.training.state import State
from nodewire.customer.training.transitions import apply

BLOB = Sealed("ab" * 32, 100, "cd" * 32, "ef" * 32)


def begun(*providers: str) -> State:
    rows = tuple(Row(n, who, 20, 1, 3, "", "") for n, who in enumerate(providers))
    state = State()
    for event in (Opened(3, (BLOB,) * len(rows), BLOB), Published(0, "r", "{}", rows)):
        state = apply(event, state)
    for who in providers:
        state = apply(Begun("r", who), state)
    return state


@pytest.mark.parametrize(
    "end",
    [
        [Lost("r", "eve", "bad-hash")],
        [Received("r", "eve"), Judged("r", "eve", False, "zero")],
        [Received("r", "eve"), Judged("r", "eve", True, "", audit=True), Audited("r", "eve", False, "other work")],
    ],
    ids=["lost", "rejected", "audited"],
)
def test_who_delivers_rubbish_at_once_does_not_hurry_the_others(end):
    """Patience goes by what results take: honest work would be given up, dealt again, and paid twice."""
    state = apply(ResultCame("r", "ada", "{}", 60_000), begun("ada", "eve"))
    honest = state.took_ms, state.step_us
    for event in (ResultCame("r", "eve", "{}", 1), *end):
        state = apply(event, state)
    assert (state.took_ms, state.step_us) == honest
