"""What providers say, and when: a customer's state is not bent by who only pretends to work. Pure."""

from __future__ import annotations

import pytest

from nodewire.training.customer.machine.events import (
    AuditOutcome,
    CiphertextRef,
    RequestPublication,
    ResultArrival,
    ResultJudgement,
    ResultReceipt,
    Row,
    ShardLoss,
    TrainingStart,
    WorkStart,
)
from nodewire.training.customer.machine.state import State
from nodewire.training.customer.machine.transitions import apply

BLOB = CiphertextRef("ab" * 32, 100, "cd" * 32, "ef" * 32)


def begun(*providers: str) -> State:
    rows = tuple(Row(n, who, 20, 1, 3, "", "") for n, who in enumerate(providers))
    state = State()
    for event in (TrainingStart(3, (BLOB,) * len(rows), BLOB), RequestPublication(0, "r", "{}", rows)):
        state = apply(event, state)
    for who in providers:
        state = apply(WorkStart("r", who), state)
    return state


@pytest.mark.parametrize(
    "end",
    [
        [ShardLoss("r", "eve", "bad-hash")],
        [ResultReceipt("r", "eve"), ResultJudgement("r", "eve", False, "zero")],
        [
            ResultReceipt("r", "eve"),
            ResultJudgement("r", "eve", True, "", audit=True),
            AuditOutcome("r", "eve", False, "other work"),
        ],
    ],
    ids=["lost", "rejected", "audited"],
)
def test_who_delivers_rubbish_at_once_does_not_hurry_the_others(end):
    """Patience goes by what results take: honest work would be given up, dealt again, and paid twice."""
    state = apply(ResultArrival("r", "ada", "{}", 60_000), begun("ada", "eve"))
    honest = state.took_ms, state.step_us
    for event in (ResultArrival("r", "eve", "{}", 1), *end):
        state = apply(event, state)
    assert (state.took_ms, state.step_us) == honest
