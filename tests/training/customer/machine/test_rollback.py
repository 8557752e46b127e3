"""Going back to before a step: what counts again, what is owed all the same, and how long it can be gone back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodewire.training.customer.machine import late_results, rollback, unresponsive
from nodewire.training.customer.machine.actions import Audit, Await, Close, Fetch, Judge, Pay, Publish, Undo
from nodewire.training.customer.machine.events import (
    AuditOutcome,
    CiphertextRef,
    ClosePublication,
    Event,
    RequestPublication,
    ResultArrival,
    ResultJudgement,
    ResultPayment,
    ResultReceipt,
    RoundQuorum,
    Row,
    ShardLoss,
    StepCompletion,
    StepOwnerChange,
    StepPublication,
    StepRollback,
    TrainingStart,
    WorkStart,
)
from nodewire.training.customer.machine.pending_actions import next_actions
from nodewire.training.customer.machine.state import State
from nodewire.training.customer.machine.transitions import apply
from nodewire.training.customer.policy import stranger_budget
from nodewire.training.customer.round_history import History
from nodewire.training.protocol.round import BALANCE

BLOB = CiphertextRef("ab" * 32, 100, "cd" * 32, "ef" * 32)


def theta(number: int) -> CiphertextRef:
    return replace(BLOB, key=f"{number:064x}")


def row(index: int, provider: str) -> Row:
    return Row(index, provider, 20, 0, 100, "http://pay", "{}")


def after(state: State, *events: Event) -> State:
    for event in events:
        state = apply(event, state)
    return state


def opened(shards: int = 2, *, needed: int = 0, late: bool = False, kept: int = 4) -> State:
    return apply(TrainingStart(4, (BLOB,) * shards, theta(0), needed, late, None, kept), State())


def came(request: str, *providers: str) -> list[Event]:
    return [
        event
        for one in providers
        for event in (WorkStart(request, one), ResultArrival(request, one, "{}", 900), ResultReceipt(request, one))
    ]


def accepted(request: str, *providers: str) -> list[Event]:
    return [ResultJudgement(request, one, True, "", True) for one in providers]


def stepped(state: State, number: int = 0) -> State:
    """A round of ada and bea that is closed, its step made, its audits open."""
    round_, request = state.round, f"r{state.round}-{number}"
    rows = tuple(row(index, provider) for index, provider in enumerate(("ada", "bea")))
    state = after(state, RequestPublication(round_, request, "{}", rows), *came(request, "ada", "bea"))
    state = after(state, *accepted(request, "ada", "bea"))
    state = after(state, ClosePublication(round_, f"c{request}", "{}", ((request, "ada"), (request, "bea"))))
    return after(state, StepCompletion(round_, 10 - round_, theta(round_ + 1), late_results.counted(state)))


def test_what_was_worked_for_nothing_counts_against_strangers():
    state = stepped(stepped(opened()))
    state = after(state, AuditOutcome("r0-0", "ada", False, "other work"))
    assert stranger_budget.lost_msat(state) == 0
    state = after(state, StepRollback(0, rollback.culprits(state, 0)))
    assert stranger_budget.lost_msat(state) == 100  # of bea's second round, which began with what ada had spoilt
    market = dict.fromkeys(("ada", "bea", "cyd"), object())
    assert set(stranger_budget.asked(market, state, 800)) == {"ada", "bea", "cyd"}
    assert set(stranger_budget.asked(market, state, 799)) == {"bea"}


def test_once_many_strangers_have_answered_nothing_who_has_done_work_is_asked_first():
    state = stepped(opened())
    crowd = [f"stranger {number}" for number in range(stranger_budget.MOST_SILENT + 1)]
    market = dict.fromkeys(("ada", "bea", *crowd), object())
    for stranger in crowd[: stranger_budget.MOST_SILENT]:
        assert stranger_budget.asked(market, state, 10**6) == market
        state = after(state, RequestPublication(1, f"to {stranger}", "{}", (row(0, stranger),)))
        state = after(state, ShardLoss(f"to {stranger}", stranger, unresponsive.NO_ANSWER))
    assert set(stranger_budget.asked(market, state, 10**6)) == {"ada", "bea"}
    assert stranger_budget.asked(dict.fromkeys(crowd, object()), state, 10**6).keys() == set(
        crowd
    )  # rather them than nobody


def test_what_failed_is_made_again_by_another_and_what_came_since_is_owed():
    state = stepped(stepped(opened()))
    rows = (row(0, "ada"), row(1, "bea"))
    state = after(
        state,
        RequestPublication(2, "r2", "{}", rows),
        WorkStart("r2", "bea"),
        AuditOutcome("r1-0", "ada", False, "other work"),
    )
    # Nothing else of ada's is audited any more, so all of it that counted has to go.
    assert state.spoilt == 0
    assert next_actions(state) == [Undo(0), Audit("r0-0", "bea"), Audit("r1-0", "bea")]
    event = StepRollback(0, rollback.culprits(state, 0))
    assert event.failed == (("r0-0", "ada"), ("r1-0", "ada"))
    state = after(state, event)
    assert (state.round, state.theta, state.thetas, state.losses) == (0, theta(0), (theta(0),), ())
    assert [(work.status, work.provider) for work in state.works] == [("idle", ""), ("accepted", "bea")]
    assert state.works[0].excluded == {"ada"}
    assert [(work.status, work.request) for work in state.late] == [("working", "r2")]
    assert [key for key, debt in state.debts.items() if debt.undone] == [
        ("r1-0", "ada"),
        ("r1-0", "bea"),
        ("r2", "ada"),
        ("r2", "bea"),
    ]
    assert state.debts["r2", "bea"].theta == theta(2)
    assert next_actions(state) == [
        Publish(0, (0,)),
        Await("r2", "bea", late=True),
        Audit("r0-0", "bea"),
        Audit("r1-0", "bea"),
    ]
    assert apply(event, state) is state
    # What comes of it is judged, closed, audited and paid beside the rounds, and is no part of them.
    state = after(state, ResultArrival("r2", "bea", "{}", 900))
    assert Fetch("r2", "bea") in next_actions(state)
    state = after(state, ResultReceipt("r2", "bea"))
    assert Judge(2, (("r2", "bea"),)) in next_actions(state)
    state = after(state, *accepted("r2", "bea"))
    assert state.late == () and Close(2, True) in next_actions(state)
    assert state.unclosed(2) == () and state.unclosed(2, True) == (("r2", "bea"),)
    state = after(state, ClosePublication(2, "c2", "{}", (("r2", "bea"),)), AuditOutcome("r2", "bea", True, ""))
    assert Pay("r2", "bea", BALANCE) in next_actions(state)
    state = after(state, ResultPayment("r2", "bea", BALANCE, 100, 0))
    assert state.debts["r2", "bea"].balance == "paid" and state.round == 0


def test_a_failed_audit_of_what_counts_in_no_step_undoes_nothing():
    state = after(stepped(opened()), RequestPublication(1, "r1", "{}", (row(0, "cyd"), row(1, "dan"))))
    state = after(state, *came("r1", "cyd", "dan"), *accepted("r1", "cyd", "dan"))
    state = after(
        state, ClosePublication(1, "c1", "{}", (("r1", "cyd"), ("r1", "dan"))), AuditOutcome("r1", "cyd", False, "")
    )
    assert state.spoilt is None and next_actions(state)[0] == Publish(1, (0,))
    assert apply(StepRollback(0), state) is state


def test_a_late_result_of_the_round_that_is_made_again_is_in_time():
    state = opened(3, needed=2, late=True)
    rows = tuple(row(index, provider) for index, provider in enumerate(("ada", "bea", "cyd")))
    state = after(
        state,
        RequestPublication(0, "r0", "{}", rows),
        WorkStart("r0", "cyd"),
        *came("r0", "ada", "bea"),
        RoundQuorum(0),
    )
    state = after(state, *accepted("r0", "ada", "bea"), ClosePublication(0, "c0", "{}", (("r0", "ada"), ("r0", "bea"))))
    state = after(state, StepCompletion(0, 9, theta(1), late_results.counted(state)))
    state = after(
        state, ResultArrival("r0", "cyd", "{}", 900), ResultReceipt("r0", "cyd", "11" * 32), *accepted("r0", "cyd")
    )
    assert [(one.index, one.round) for one in late_results.counted(state)] == [(2, 0)]
    state = after(state, AuditOutcome("r0", "ada", False, "other work"), StepRollback(0))
    assert [work.status for work in state.works] == ["missed", "accepted", "accepted"] and state.late == ()
    assert [(one.provider, one.round) for one in late_results.counted(state)] == [("bea", 0), ("cyd", 0)]


def test_a_bought_step_comes_to_its_end_before_it_is_gone_back():
    state = after(stepped(opened()), StepOwnerChange(True), AuditOutcome("r0-0", "bea", True, ""))
    state = after(state, RequestPublication(1, "r1", "{}", (row(0, "cyd"), row(1, "dan"))), *came("r1", "cyd", "dan"))
    state = after(state, ResultJudgement("r1", "cyd", True, ""), ResultJudgement("r1", "dan", True, ""))
    counted = late_results.counted(state)
    state = after(state, StepPublication(1, "s1", "{}", row(-1, "eve"), counted, None), WorkStart("s1", "eve"))
    state = after(state, AuditOutcome("r0-0", "ada", False, "other work"))
    assert not any(isinstance(action, Undo) for action in next_actions(state))
    state = after(
        state, ResultArrival("s1", "eve", "{}", 900), StepCompletion(1, 5, theta(2), counted, "s1", "eve", BLOB)
    )
    assert next_actions(state)[0] == Undo(0)
    state = after(state, StepRollback(0))
    assert state.outer.momenta is None and state.debts["s1", "eve"].balance == "owed"


def test_it_can_be_gone_back_only_as_far_as_audits_are_open():
    state = stepped(stepped(opened()))
    assert rollback.oldest(state) == 0
    state = after(state, AuditOutcome("r0-0", "ada", True, ""), AuditOutcome("r0-0", "bea", True, ""))
    state = stepped(state)
    assert rollback.oldest(state) == 1 and sorted(state.past) == [1, 2]


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_no_more_rounds_are_kept_than_audits_are_waited_for(kept):
    state = opened(kept=kept)
    for _ in range(kept):
        assert any(isinstance(action, Publish) for action in next_actions(state))
        state = stepped(state)
    assert not any(isinstance(action, Publish) for action in next_actions(state)) and len(state.past) == kept


def test_a_history_has_the_points_of_what_was_not_undone_and_the_money_of_all():
    steps = [StepCompletion(number, 10 - number, theta(number)) for number in (0, 1, 2)]
    paid = ResultPayment("r0", "ada", BALANCE, 100, 1)
    history = History.replay([*steps[:2], paid, StepRollback(1, (("r1", "bea"),)), *steps[1:]])
    assert [point.round for point in history.points] == [0, 1, 2]
    assert [point.paid_msat for point in history.points] == [0, 100, 100]
    assert [event.round for event in history.undone] == [1]
