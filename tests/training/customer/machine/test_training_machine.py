"""A training's state machine: a round ends when every shard was accepted; what a crash interrupts is pending again."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import NotAllowed
from nodewire.training.customer.machine import late_results, rollback
from nodewire.training.customer.machine.actions import (
    Action,
    Audit,
    Await,
    Call,
    Close,
    Fetch,
    Judge,
    Linger,
    Pay,
    Publish,
    Step,
    Undo,
)
from nodewire.training.customer.machine.events import (
    AuditOutcome,
    CiphertextRef,
    ClosePublication,
    DepositRequest,
    Event,
    RequestPublication,
    ResultArrival,
    ResultJudgement,
    ResultPayment,
    ResultReceipt,
    ResultTimeout,
    RoundQuorum,
    Row,
    ShardLoss,
    StepCompletion,
    StepRollback,
    TrainingStart,
    WorkStart,
)
from nodewire.training.customer.machine.journal import Journal
from nodewire.training.customer.machine.pending_actions import next_actions
from nodewire.training.customer.machine.state import State
from nodewire.training.customer.machine.transitions import apply
from nodewire.training.customer.policy import result_deadline
from nodewire.training.protocol.round import BALANCE, DEPOSIT

BLOB = CiphertextRef("ab" * 32, 100, "cd" * 32, "ef" * 32)
OPENED = TrainingStart(2, (BLOB, BLOB), BLOB)


def row(index: int, provider: str, deposit_msat: int = 25) -> Row:
    return Row(index, provider, 20, deposit_msat, 100 - deposit_msat, "http://pay", "{}")


def after(*events: Event, state: State | None = None) -> State:
    state = state or apply(OPENED, State())
    for event in events:
        state = apply(event, state)
    return state


ASKED = RequestPublication(0, "r0", "{}", (row(0, "ada"), row(1, "bea")))


def delivered(request: str, provider: str) -> list[Event]:
    return [WorkStart(request, provider), ResultArrival(request, provider, "{}", 900), ResultReceipt(request, provider)]


def test_what_is_pending_follows_a_shard_through_its_round():
    state = after()
    assert next_actions(state) == [Publish(0, (0, 1))]
    state = after(ASKED, state=state)
    assert next_actions(state) == [Call("r0", "ada"), Call("r0", "bea")]
    state = after(DepositRequest("r0", "ada"), WorkStart("r0", "bea"), state=state)
    assert next_actions(state) == [Await("r0", "ada"), Await("r0", "bea"), Pay("r0", "ada", DEPOSIT)]
    state = after(ResultPayment("r0", "ada", DEPOSIT, 25, 1), ResultArrival("r0", "ada", "{}", 900), state=state)
    assert next_actions(state) == [Fetch("r0", "ada"), Await("r0", "bea")]
    state = after(ResultReceipt("r0", "ada"), *delivered("r0", "bea"), state=state)
    assert next_actions(state) == [Judge(0, (("r0", "ada"), ("r0", "bea")))]
    state = after(ResultJudgement("r0", "ada", True, ""), ResultJudgement("r0", "bea", True, ""), state=state)
    assert next_actions(state) == [Step(0), Pay("r0", "ada", BALANCE), Pay("r0", "bea", BALANCE)]
    state = after(StepCompletion(0, 1_000_000, BLOB), state=state)
    assert next_actions(state) == [Publish(1, (0, 1)), Pay("r0", "ada", BALANCE), Pay("r0", "bea", BALANCE)]
    assert state.paid_last == {"ada": "r0", "bea": "r0"}


def test_who_is_rejected_or_lost_is_replaced_and_not_paid():
    state = after(ASKED, *delivered("r0", "ada"), ShardLoss("r0", "bea", "no answer"))
    assert next_actions(state) == [Publish(0, (1,))]
    assert state.works[1].excluded == {"bea"}
    state = after(RequestPublication(0, "r1", "{}", (row(1, "cyd"),)), *delivered("r1", "cyd"), state=state)
    state = after(ResultJudgement("r0", "ada", False, "gain"), ResultJudgement("r1", "cyd", True, ""), state=state)
    assert next_actions(state) == [Publish(0, (0,)), Pay("r1", "cyd", BALANCE)]
    assert state.failures == (("bea", "no answer"), ("ada", "gain"))
    assert state.debts["r0", "ada"].balance == "none"
    assert state.committed_msat == 100


def audited(*providers: str, number: int) -> list[Event]:
    """A whole round of these providers, whose work waits for its audits."""
    request = f"r{number}"
    rows = tuple(row(index, provider) for index, provider in enumerate(providers))
    events: list[Event] = [RequestPublication(number, request, "{}", rows)]
    for provider in providers:
        events += [*delivered(request, provider), ResultJudgement(request, provider, True, "", True)]
    closed = ClosePublication(number, f"c{number}", "{}", tuple((request, provider) for provider in providers))
    return [*events, closed, StepCompletion(number, 1, BLOB)]


def test_a_round_is_closed_once_before_anything_of_it_is_audited():
    opened = apply(TrainingStart(4, (BLOB, BLOB), BLOB), State())
    *events, closed, stepped = audited("ada", "bea", number=0)
    state = after(*events[:-1], state=opened)
    assert next_actions(state) == [Judge(0, (("r0", "bea"),))]
    state = after(events[-1], state=state)
    assert next_actions(state) == [Step(0), Close(0)]
    assert Close(0) in next_actions(after(stepped, state=state))
    state = after(closed, state=state)
    assert next_actions(state) == [Step(0), Audit("r0", "ada"), Audit("r0", "bea")]
    assert apply(replace(closed, close="c9"), state) is state
    state = after(AuditOutcome("r0", "ada", True, ""), state=state)
    assert list(state.closes) == ["c0"]
    assert after(AuditOutcome("r0", "bea", True, ""), state=state).closes == {}


def test_a_balance_waits_for_its_audit_and_rounds_for_those_of_the_round_before_the_last():
    opened = apply(TrainingStart(4, (BLOB, BLOB), BLOB), State())
    state = after(*audited("ada", "bea", number=0), *audited("ada", "bea", number=1), state=opened)
    audits = [Audit(request, provider) for request in ("r0", "r1") for provider in ("ada", "bea")]
    assert next_actions(state) == audits
    state = after(AuditOutcome("r0", "ada", True, ""), AuditOutcome("r0", "bea", True, ""), state=state)
    assert next_actions(state)[0] == Publish(2, (0, 1))
    assert Pay("r0", "ada", BALANCE) in next_actions(state)


def test_who_fails_an_audit_loses_all_that_waits_for_one_and_what_it_is_at():
    opened = apply(TrainingStart(4, (BLOB, BLOB), BLOB), State())
    state = after(*audited("ada", "bea", number=0), state=opened)
    state = after(
        RequestPublication(1, "r1", "{}", (row(0, "ada"), row(1, "bea"))), *delivered("r1", "ada"), state=state
    )
    state = after(AuditOutcome("r0", "ada", False, "other work"), state=state)
    assert next_actions(state) == [Publish(1, (0,)), Call("r1", "bea"), Audit("r0", "bea")]
    assert state.works[0].excluded == {"ada"}
    assert apply(AuditOutcome("r0", "ada", True, ""), state) is state


def test_a_word_that_comes_late_or_twice_changes_nothing():
    state = after(ASKED, *delivered("r0", "ada"), ShardLoss("r0", "bea", "late"))
    for event in (
        ASKED,
        OPENED,
        WorkStart("r0", "ada"),
        DepositRequest("r0", "ada"),
        ResultArrival("r0", "ada", "{}", 5),
        WorkStart("r0", "bea"),
        ResultArrival("r0", "bea", "{}", 5),
        ResultJudgement("r0", "bea", True, ""),
        StepCompletion(7, 1, BLOB),
        WorkStart("unknown", "ada"),
    ):
        assert apply(event, state) is state, event


def test_a_round_is_not_over_before_every_shard_was_accepted():
    with pytest.raises(NotAllowed):
        after(ASKED, *delivered("r0", "ada"), ResultJudgement("r0", "ada", True, ""), StepCompletion(0, 1, BLOB))


def test_a_round_is_stepped_without_who_takes_long_once_enough_are_there():
    opened = apply(TrainingStart(2, (BLOB, BLOB, BLOB), BLOB, needed=2, late=True), State())
    asked = RequestPublication(0, "r0", "{}", (row(0, "ada"), row(1, "bea"), row(2, "cyd")))
    state = after(
        asked, *(WorkStart("r0", one) for one in ("ada", "bea", "cyd")), *delivered("r0", "bea"), state=opened
    )
    assert apply(RoundQuorum(0), state) is state  # too early
    state = after(*delivered("r0", "cyd"), state=state)
    assert next_actions(state) == [Await("r0", "ada"), Linger(0)]
    state = after(RoundQuorum(0), state=state)
    assert next_actions(state) == [Judge(0, (("r0", "bea"), ("r0", "cyd"))), Await("r0", "ada", late=True)]
    rejected = after(ResultJudgement("r0", "bea", True, ""), ResultJudgement("r0", "cyd", False, "norm"), state=state)
    assert next_actions(rejected)[0] == Publish(0, (2,))  # ada's shard stays missed
    state = after(ResultJudgement("r0", "bea", True, ""), ResultJudgement("r0", "cyd", True, ""), state=state)
    assert next_actions(state)[0] == Step(0)
    counted = late_results.counted(state)
    assert [(one.index, one.round, one.steps) for one in counted] == [(1, 0, 20), (2, 0, 20)]
    # In the next round it comes, is judged by its own round's weights, counts and is paid.
    state = after(StepCompletion(0, 1, BLOB, counted), *delivered("r0", "ada"), state=state)
    assert Judge(0, (("r0", "ada"),)) in next_actions(state)
    state = after(ResultJudgement("r0", "ada", True, ""), state=state)
    assert Pay("r0", "ada", BALANCE) in next_actions(state)
    assert [(one.index, one.round) for one in late_results.counted(state)] == [(0, 0)]


def late_one(rounds: int, **opened: object) -> State:
    """Ada's result of round 0 came in round 1, or in a later one, and was received."""
    state = apply(TrainingStart(9, (BLOB, BLOB), BLOB, needed=1, **opened), State())
    for round_ in range(rounds):
        rows = (row(0, "ada"), row(1, "bea")) if not round_ else (row(1, "bea"),)
        state = after(
            RequestPublication(round_, f"r{round_}", "{}", rows), *delivered(f"r{round_}", "bea"), state=state
        )
        state = after(
            WorkStart("r0", "ada"), RoundQuorum(round_), ResultJudgement(f"r{round_}", "bea", True, ""), state=state
        )
        state = after(StepCompletion(round_, 1, BLOB, late_results.counted(state)), state=state)
    return after(*delivered("r0", "ada"), state=state)


@pytest.mark.parametrize(("rounds", "late", "counts"), [(1, True, True), (1, False, False), (2, True, False)])
def test_a_late_result_counts_once_or_not_at_all_and_is_paid_anyway(rounds, late, counts):
    state = after(ResultJudgement("r0", "ada", True, ""), state=late_one(rounds, late=late))
    assert bool([one for one in late_results.counted(state) if one.provider == "ada"]) == counts
    assert Pay("r0", "ada", BALANCE) in next_actions(state)
    assert bool(state.late) == counts


def test_a_late_result_does_not_count_beside_the_one_that_replaced_it():
    state = apply(TrainingStart(2, (BLOB,), BLOB, late=True), State())
    state = after(RequestPublication(0, "r0", "{}", (row(0, "ada"),)), WorkStart("r0", "ada"), state=state)
    state = after(ResultTimeout("r0", "ada", "slow"), state=state)
    assert next_actions(state) == [Publish(0, (0,)), Await("r0", "ada", late=True)]
    assert state.works[0].excluded == {"ada"}
    state = after(RequestPublication(0, "r1", "{}", (row(0, "bea"),)), *delivered("r1", "bea"), state=state)
    state = after(*delivered("r0", "ada"), ResultJudgement("r1", "bea", True, ""), state=state)
    assert next_actions(state)[0] == Step(0)  # a late one is judged when its round is over
    state = after(
        StepCompletion(0, 1, BLOB, late_results.counted(state)), ResultJudgement("r0", "ada", True, ""), state=state
    )
    assert late_results.counted(state) == () == state.late
    assert {who for (_, who), debt in state.debts.items() if debt.balance == "owed"} == {"ada", "bea"}


def test_who_was_given_up_and_delivers_before_another_has_its_shard_is_taken_back():
    state = apply(TrainingStart(2, (BLOB,), BLOB), State())
    state = after(RequestPublication(0, "r0", "{}", (row(0, "ada"),)), WorkStart("r0", "ada"), state=state)
    state = after(ResultTimeout("r0", "ada", "slow"), ResultArrival("r0", "ada", "{}", 900), state=state)
    assert state.late == ()
    assert next_actions(state) == [Fetch("r0", "ada")]
    assert next_actions(after(ShardLoss("r0", "ada", "bad-hash"), state=state)) == [Publish(0, (0,))]
    state = after(ResultReceipt("r0", "ada"), ResultJudgement("r0", "ada", True, ""), state=state)
    assert next_actions(state)[0] == Step(0)


def test_what_is_late_and_never_comes_is_not_owed_and_a_training_does_not_end_before_that_is_known():
    state = after(ResultJudgement("r0", "ada", False, "norm"), state=late_one(1, late=True))
    assert state.late == () and state.debts["r0", "ada"].balance == "none"
    state = apply(TrainingStart(1, (BLOB, BLOB), BLOB, needed=1), State())
    state = after(ASKED, WorkStart("r0", "ada"), *delivered("r0", "bea"), RoundQuorum(0), state=state)
    assert apply(DepositRequest("r0", "ada"), state) is state
    state = after(
        ResultJudgement("r0", "bea", True, ""),
        ResultPayment("r0", "bea", BALANCE, 75, 0),
        StepCompletion(0, 1, BLOB),
        state=state,
    )
    assert state.is_trained and not state.is_over
    state = after(ShardLoss("r0", "ada", "no result by its deadline"), state=state)
    assert state.is_over


def walk(seed: int, rounds: int, shards: int, needed: int = 0, late: bool = False) -> tuple[list[Event], list[State]]:
    """A training in which providers refuse, die, linger and cheat at random, until it is over; the state after each
    event."""
    draw = random.Random(seed)
    events: list[Event] = [TrainingStart(rounds, (BLOB,) * shards, BLOB, needed, late)]
    states = [apply(events[0], State())]
    while not states[-1].is_over:
        state = states[-1]
        checked(state)
        events.append(outcome(draw.choice(next_actions(state)), state, draw, len(events)))
        states.append(apply(events[-1], state))
    return events, states


def outcome(action: Action, state: State, draw: random.Random, number: int) -> Event:
    """What comes of an action, by chance; `number` tells ids apart."""
    match action:
        case Publish(round_, indices):
            some = draw.sample(indices, draw.randint(1, len(indices)))
            rows = tuple(row(i, f"p{draw.randrange(10**6)}", draw.choice((0, 25))) for i in sorted(some))
            return RequestPublication(round_, f"r{number}", "{}", rows)
        case Call(request, provider):
            begins = DepositRequest(request, provider), WorkStart(request, provider)
            return draw.choice((*begins, ShardLoss(request, provider, "busy")))
        case Await(request, provider, is_late):
            gone = ShardLoss(request, provider, "gone") if is_late else ResultTimeout(request, provider, "slow")
            return draw.choice((ResultArrival(request, provider, "{}", 5), ShardLoss(request, provider, "error"), gone))
        case Linger(round_):
            return RoundQuorum(round_)
        case Fetch(request, provider):
            return draw.choice((ResultReceipt(request, provider), ShardLoss(request, provider, "bad-hash")))
        case Judge(_, waiting):
            return ResultJudgement(*draw.choice(waiting), draw.random() < 0.7, "", draw.random() < 0.5)
        case Close(round_, undone):
            return ClosePublication(round_, f"c{number}", "{}", state.unclosed(round_, undone))
        case Audit(request, provider):
            return AuditOutcome(request, provider, draw.random() < 0.8, "")
        case Pay(request, provider, part):
            return ResultPayment(request, provider, part, 1, 0)
        case Step(round_):
            return StepCompletion(round_, 1, replace(BLOB, key=f"{number:064x}"), late_results.counted(state))
        case Undo(round_):
            return StepRollback(round_, rollback.culprits(state, round_))
    raise AssertionError(f"{action} is of a step that is bought")


def checked(state: State) -> None:
    """What holds at every moment: something is to be done, nothing twice, no shard is at two providers."""
    actions = next_actions(state)
    assert actions
    assert len(actions) == len(set(actions))
    assert state.spoilt is None or state.spoilt in state.past
    pays = [action for action in actions if isinstance(action, Pay)]
    for pay in pays:
        debt = state.debts[pay.request, pay.provider]
        assert (debt.deposit if pay.part == DEPOSIT else debt.balance) == "owed"
    asked = [index for action in actions if isinstance(action, Publish) for index in action.indices]
    assert all(state.works[index].status == "idle" for index in asked)
    under_way = [(work.request, work.provider) for work in (*state.works, *state.late) if work.request]
    assert len(under_way) == len(set(under_way))
    for work in state.late:
        assert work.status != "accepted" or state.debts[work.request, work.provider].round == state.round - 1


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 5), st.integers(0, 5), st.booleans())
@settings(max_examples=60)
def test_whatever_providers_do_a_training_ends_and_pays_whom_it_accepted(seed, rounds, shards, needed, late):
    needed = min(needed, shards)
    events, states = walk(seed, rounds, shards, needed, late)
    failed = {e.provider for e in events if isinstance(e, AuditOutcome) and not e.passed}
    accepted = {(e.request, e.provider) for e in events if isinstance(e, ResultJudgement) and e.accepted}
    paid = [(e.request, e.provider, e.part) for e in events if isinstance(e, ResultPayment)]
    assert len(accepted) >= rounds * (needed or shards)
    assert len(paid) == len(set(paid))
    balances = {(request, provider) for request, provider, part in paid if part == BALANCE}
    assert balances <= accepted
    assert {provider for _, provider in accepted - balances} <= failed
    assert len(states[-1].losses) == rounds
    assert next_actions(states[-1]) == []
    steps, thetas = lineage(events)
    counted = [(one.request, one.provider) for e in steps for one in e.counted]
    assert len(counted) == len(set(counted)) and set(counted) <= accepted
    assert not {key for key, debt in states[-1].debts.items() if debt.failed} & set(counted)
    assert all(
        states[-1].debts[one.request, one.provider].theta == thetas[one.round] for e in steps for one in e.counted
    )
    work = [(one.index, one.round) for e in steps for one in e.counted]
    assert len(work) == len(set(work))  # nobody's and nothing counts twice
    if not late:
        assert all(one.round == e.round for e in steps for one in e.counted)


def lineage(events: list[Event]) -> tuple[list[StepCompletion], list[CiphertextRef]]:
    """The steps that the weights at the end are made of, and what their rounds began with."""
    steps: list[StepCompletion] = []
    for event in events:
        match event:
            case StepRollback(round_):
                del steps[round_:]
            case StepCompletion():
                steps.append(event)
    return steps, [BLOB, *(event.theta for event in steps)]


@given(st.integers(0, 2**32), st.integers(1, 3), st.booleans())
@settings(max_examples=15)
def test_the_journal_gives_the_state_back_at_every_moment(tmp_path_factory, seed, needed, late):
    events, states = walk(seed, 2, 3, needed, late)
    journal = Journal(tmp_path_factory.mktemp("journal") / "journal.db")
    for event in events:
        journal.append(event)
    assert journal.events() == events
    again = State()
    for event, state in zip(journal.events(), states, strict=True):
        again = apply(event, again)
        assert again == state
    assert journal.fact("salt", "one") == journal.fact("salt", "other") == "one"
    journal.close()


@given(st.integers(0, 2**32), st.integers(1, 3), st.booleans())
@settings(max_examples=15)
def test_what_is_said_twice_changes_nothing_more(seed, needed, late):
    """Relays repeat, and a customer that died hears again what it has heard: what providers say is taken once."""
    events, states = walk(seed, 2, 3, needed, late)
    said = (
        DepositRequest,
        WorkStart,
        ResultArrival,
        ResultReceipt,
        ResultJudgement,
        ShardLoss,
        ResultTimeout,
        RoundQuorum,
        RequestPublication,
        AuditOutcome,
    )
    last = states[-1]
    for at, event in enumerate(events):
        if isinstance(event, said):
            assert apply(event, states[at]) == states[at], event
            assert apply(event, last) is last, event


@pytest.mark.parametrize(
    ("took_ms", "expected_s"),
    [
        ((), 60),
        ((100,), 60),
        ((1_000, 1_000), 10),
        ((8_000, 8_000, 8_000), 24),
        ((8_000, 9_000, 7_000), 30),
        ((50_000, 50_000), 60),
    ],
)
def test_a_result_is_waited_for_as_long_as_results_take(took_ms, expected_s):
    assert result_deadline.patience_s(took_ms, 60) == expected_s
