"""What is asked of whom: what a provider carries on where its result counted, and nothing where it has lost it."""

from __future__ import annotations

from dataclasses import replace

from nodewire.training.customer.machine.actions import Publish
from nodewire.training.customer.machine.events import (
    CiphertextRef,
    Contribution,
    RequestPublication,
    ResultArrival,
    ResultJudgement,
    ResultReceipt,
    Row,
    ShardLoss,
    StepCompletion,
    TrainingStart,
    WorkStart,
)
from nodewire.training.customer.machine.pending_actions import next_actions
from nodewire.training.customer.machine.state import State, Work
from nodewire.training.customer.machine.transitions import apply
from nodewire.training.customer.market import carried_state

BLOB = CiphertextRef("aa" * 32, 100, "bb" * 32, "cc" * 32)
LEFT = "dd" * 32


def row(index: int, provider: str) -> Row:
    return Row(index, provider, 20, 0, 100, "https://pay", "{}")


def after(*events, state: State | None = None) -> State:
    state = state or State()
    for event in events:
        state = apply(event, state)
    return state


def counted(index: int, provider: str, round_: int = 0) -> Contribution:
    return Contribution(index, round_, 20, "r0", provider)


def done(carried: str = LEFT, *, counts: bool = True) -> State:
    """After a round of two shards, ada's and bea's."""
    events = [TrainingStart(3, (BLOB, BLOB), BLOB), RequestPublication(0, "r0", "{}", (row(0, "ada"), row(1, "bea")))]
    for provider in ("ada", "bea"):
        events += [
            WorkStart("r0", provider),
            ResultArrival("r0", provider, "{}", 5),
            ResultReceipt("r0", provider, carried if provider == "ada" else ""),
            ResultJudgement("r0", provider, True, ""),
        ]
    made = (counted(0, "ada"), counted(1, "bea")) if counts else (counted(1, "bea"),)
    return after(*events, StepCompletion(0, 5, BLOB, made))


def test_a_provider_goes_on_from_what_it_has_committed_to():
    dealt = {0: "ada", 1: "bea"}
    assert carried_state.find_carried(done(), dealt, [0, 1]) == {0: LEFT}
    assert carried_state.find_carried(done(), dealt, [1]) == {}
    assert carried_state.find_carried(done(carried_state.NOTHING), dealt, [0, 1]) == {}


def test_who_takes_over_or_did_not_count_or_was_late_begins_with_nothing():
    assert carried_state.find_carried(done(), {0: "cyd", 1: "bea"}, [0, 1]) == {}
    assert carried_state.find_carried(done(), {0: "bea", 1: "ada"}, [0, 1]) == {}
    assert carried_state.find_carried(done(counts=False), {0: "ada", 1: "bea"}, [0, 1]) == {}
    late = replace(done(), counted=(counted(0, "ada", -1),))
    assert carried_state.find_carried(late, {0: "ada", 1: "bea"}, [0, 1]) == {}


def test_who_has_lost_it_is_asked_once_more_with_nothing_and_then_given_up():
    asked = after(RequestPublication(1, "r1", "{}", (row(0, "ada"), row(1, "bea"))), state=done())
    again = after(ShardLoss("r1", "ada", "not-carried"), state=asked)
    assert again.works[0] == Work(0, provider="ada", afresh=True)
    assert again.failures == () and again.paid_last["ada"] == "r0"
    assert Publish(1, (0,)) in next_actions(again)
    assert carried_state.find_carried(again, {0: "ada"}, [0]) == {}
    given_up = after(
        RequestPublication(1, "r2", "{}", (row(0, "ada"),)),
        WorkStart("r2", "ada"),
        ShardLoss("r2", "ada", "not-carried"),
        state=again,
    )
    assert given_up.works[0].excluded == {"ada"} and given_up.failures == (("ada", "not-carried"),)
    stepped = after(RequestPublication(1, "r3", "{}", (row(0, "cyd"),)), state=given_up)
    assert not stepped.works[0].afresh
