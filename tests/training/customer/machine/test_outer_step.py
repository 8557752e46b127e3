"""Outer steps that are bought, in the state machine: when one is asked for, what comes of it, who pays what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodewire.training.customer.machine import late_results
from nodewire.training.customer.machine.actions import (
    Audit,
    AwaitStep,
    BuyStep,
    Call,
    CheckStep,
    Close,
    Pay,
    Publish,
    Step,
)
from nodewire.training.customer.machine.events import (
    AuditOutcome,
    CiphertextRef,
    ClosePublication,
    DepositRequest,
    Event,
    LocalStepChoice,
    RequestPublication,
    ResultArrival,
    ResultJudgement,
    ResultPayment,
    ResultReceipt,
    Row,
    ShardLoss,
    StepCompletion,
    StepOwnerChange,
    StepPublication,
    TrainingStart,
    WorkStart,
)
from nodewire.training.customer.machine.journal import Journal
from nodewire.training.customer.machine.pending_actions import next_actions
from nodewire.training.customer.machine.state import State
from nodewire.training.customer.machine.transitions import apply
from nodewire.training.protocol.round import BALANCE, DEPOSIT

BLOB, OTHER = CiphertextRef("ab" * 32, 100, "cd" * 32, "ef" * 32), CiphertextRef("12" * 32, 100, "34" * 32, "56" * 32)
OPENED = TrainingStart(2, (BLOB, BLOB), BLOB)


def row(index: int, provider: str) -> Row:
    return Row(index, provider, 20, 25, 75, "http://pay", "{}")


def after(*events: Event, state: State | None = None) -> State:
    state = State() if state is None else state
    for event in events:
        state = apply(event, state)
    return state


def accepted(provider: str, request: str, audit: bool = False) -> list[Event]:
    return [
        WorkStart(request, provider),
        ResultArrival(request, provider, "{}", 100),
        ResultReceipt(request, provider),
        ResultJudgement(request, provider, True, "", audit),
        *(ResultPayment(request, provider, BALANCE, 75, 0) for _ in range(not audit)),
    ]


ASKED = RequestPublication(0, "r0", "{}", (row(0, "ada"), row(1, "bea")))
ROUND = [OPENED, StepOwnerChange(True), ASKED, *accepted("ada", "r0"), *accepted("bea", "r0")]


def published(request: str = "s0", provider: str = "oona", state: State | None = None, momenta=None) -> StepPublication:
    state = state or after(*ROUND)
    return StepPublication(state.round, request, "{}", row(0, provider), late_results.counted(state), momenta)


def bought(state: State) -> StepCompletion:
    job = state.outer
    return StepCompletion(state.round, 5, OTHER, job.counted, job.request, job.provider, OTHER)


def test_a_step_is_bought_once_all_results_are_accepted_and_paid_when_it_was_checked():
    state = after(*ROUND)
    assert next_actions(state) == [BuyStep(0)]
    state = apply(published(), state)
    assert (next_actions(state), state.committed_msat) == ([Call("s0", "oona")], 200 + 100)
    state = apply(DepositRequest("s0", "oona"), state)
    assert next_actions(state) == [AwaitStep("s0", "oona"), Pay("s0", "oona", DEPOSIT)]
    state = after(ResultPayment("s0", "oona", DEPOSIT, 25, 0), ResultArrival("s0", "oona", "{r}", 70), state=state)
    assert next_actions(state) == [CheckStep("s0", "oona")]
    state = apply(bought(state), state)
    assert next_actions(state) == [Publish(1, (0, 1)), Pay("s0", "oona", BALANCE)]
    assert (state.round, state.theta, state.outer.momenta, state.losses) == (1, OTHER, OTHER, (5,))
    assert state.debts["s0", "oona"].result == "{r}"
    paid = apply(ResultPayment("s0", "oona", BALANCE, 75, 0), state)
    assert next_actions(paid) == [Publish(1, (0, 1))]
    assert paid.committed_msat == 150 + 100


def test_it_is_not_asked_for_while_an_audit_may_take_a_result_away():
    state = after(OPENED, StepOwnerChange(True), ASKED, *accepted("ada", "r0", audit=True), *accepted("bea", "r0"))
    assert next_actions(state) == [Close(0)]
    state = apply(ClosePublication(0, "c0", "{}", (("r0", "ada"),)), state)
    assert next_actions(state) == [Audit("r0", "ada")]
    assert BuyStep(0) in next_actions(apply(AuditOutcome("r0", "ada", True, ""), state))
    assert Publish(0, (0,)) in next_actions(apply(AuditOutcome("r0", "ada", False, "other work"), state))


@pytest.mark.parametrize("here", [False, True])
def test_steps_are_made_here_by_whoever_does_not_buy_them_or_finds_nobody(here):
    events = [event for event in ROUND if here or not isinstance(event, StepOwnerChange)]
    state = after(*events, *([LocalStepChoice(0, "nobody")] if here else []))
    assert next_actions(state) == [Step(0)]
    state = apply(StepCompletion(0, 5, OTHER, late_results.counted(state)), state)
    assert (state.round, state.outer.momenta, state.outer.here) == (1, None, False)


def test_a_wrong_step_is_not_paid_and_who_made_it_is_asked_for_nothing_more():
    state = after(published(), DepositRequest("s0", "oona"), ResultArrival("s0", "oona", "{}", 70), state=after(*ROUND))
    state = apply(ResultJudgement("s0", "oona", False, "bad-update"), state)
    assert next_actions(state) == [BuyStep(0), Pay("s0", "oona", DEPOSIT)]
    assert state.debts["s0", "oona"].balance == "none"
    assert state.banned == {"oona"} and state.failures == (("oona", "bad-update"),)


def test_who_fails_is_not_asked_again_in_this_round_and_after_three_it_is_made_here():
    state = after(*ROUND)
    for number, provider in enumerate(("oona", "pia", "quin")):
        assert next_actions(state) == [BuyStep(0)]
        state = apply(published(f"s{number}", provider), state)
        state = apply(ShardLoss(f"s{number}", provider, "no answer"), state)
        assert provider in state.outer.lost_by
    assert next_actions(state) == [Step(0)]
    state = apply(StepCompletion(0, 5, OTHER, late_results.counted(state)), state)
    assert (state.outer.lost_by, state.banned) == (frozenset(), frozenset())


def test_while_a_step_is_under_way_no_result_that_it_is_made_of_is_replaced():
    late = [OPENED, StepOwnerChange(True), ASKED, *accepted("ada", "r0"), *accepted("bea", "r0"), published()]
    state = after(*late, DepositRequest("s0", "oona"), ResultPayment("s0", "oona", DEPOSIT, 25, 0))
    # An audit of a round before finds ada out.
    debt = state.debts["r0", "ada"]
    state = replace(state, debts={**state.debts, ("old", "ada"): replace(debt, balance="held")})
    state = apply(AuditOutcome("old", "ada", False, "other work"), state)
    assert [work.status for work in state.works] == ["idle", "accepted"]
    assert next_actions(state) == [AwaitStep("s0", "oona")]
    # What was asked for is right, and paid, though another has to be made.
    state = after(ResultArrival("s0", "oona", "{}", 7), ResultJudgement("s0", "oona", True, "found out"), state=state)
    assert next_actions(state) == [Publish(0, (0,)), Pay("s0", "oona", BALANCE)]


def test_words_that_come_twice_or_late_change_nothing():
    state = after(*ROUND, published(), DepositRequest("s0", "oona"))
    assert after(published("s1", "pia"), DepositRequest("s0", "oona"), LocalStepChoice(0, ""), state=state) is state
    assert apply(ResultJudgement("s0", "oona", True, ""), state) is state  # nothing was delivered
    done = after(ResultArrival("s0", "oona", "{}", 7), state=state)
    done = apply(bought(done), done)
    for event in (
        ShardLoss("s0", "oona", "late"),
        ResultArrival("s0", "oona", "{}", 1),
        ResultJudgement("s0", "oona", False, ""),
    ):
        assert apply(event, done) is done
    assert apply(StepOwnerChange(True), done) is done


def test_the_journal_gives_the_same_events_back(tmp_path):
    state = after(*ROUND)
    events = [*ROUND, published(momenta=BLOB), DepositRequest("s0", "oona"), ResultArrival("s0", "oona", "{}", 7)]
    events.append(bought(after(*events)))
    events.append(LocalStepChoice(1, "nobody"))
    journal = Journal(tmp_path / "journal.db")
    for event in events:
        journal.append(event)
    journal.close()
    again = Journal(tmp_path / "journal.db")
    assert again.events() == events
    assert after(*again.events()) == after(*events) != state
    again.close()
