"""At a training's end payments that fail are tried for a while, less long where nobody takes a connection."""

from __future__ import annotations

from nodewire.training.customer.machine.events import (
    RequestPublication,
    ResultArrival,
    ResultJudgement,
    ResultPayment,
    ResultReceipt,
    ShardLoss,
    StepCompletion,
    TrainingStart,
)
from nodewire.training.customer.policy.payment_retry import (
    REFUSED_S,
    UNPAYABLE_S,
    PaymentWait,
    patience_s,
    payment_wait,
)
from nodewire.training.protocol.round import BALANCE
from tests.training.customer.market.test_carried_state import BLOB, after, row


def trained(*providers: str, rounds: int = 1):
    """After a round in which each of these is owed 100 msat."""
    rows = tuple(row(index, provider) for index, provider in enumerate(providers))
    events = [TrainingStart(rounds, (BLOB,) * len(rows), BLOB), RequestPublication(0, "r", "{}", rows)]
    for one in providers:
        events += [ResultArrival("r", one, "{}", 5), ResultReceipt("r", one), ResultJudgement("r", one, True, "")]
    return after(*events, StepCompletion(0, 5, BLOB))


def test_nothing_is_waited_for_while_rounds_are_to_come():
    state = trained("ada", rounds=2)
    assert patience_s(state, {"ada": True}) is None
    assert payment_wait(state, {"ada": True}) is None
    asked = after(RequestPublication(1, "r1", "{}", (row(0, "ada"),)), ShardLoss("r1", "ada", "busy"), state=state)
    assert payment_wait(asked, {"ada": True}) is None


def test_it_is_told_of_those_alone_whose_payment_has_failed():
    state = trained("ada", "bea")
    assert (patience_s(state, {}), payment_wait(state, {})) == (UNPAYABLE_S, None)
    assert payment_wait(state, {"ada": True}) == PaymentWait((("ada", 100),), UNPAYABLE_S)
    paid = after(ResultPayment("r", "bea", BALANCE, 100, 0), state=state)
    assert payment_wait(paid, {"ada": False}) == PaymentWait((("ada", 100),), UNPAYABLE_S)
    over = after(ResultPayment("r", "ada", BALANCE, 100, 0), state=paid)
    assert payment_wait(over, {"ada": False}) is None


def test_it_is_less_long_where_nobody_who_is_owed_something_takes_a_connection():
    state = trained("ada", "bea")
    assert payment_wait(state, {"ada": True, "bea": False}).most_s == UNPAYABLE_S
    assert payment_wait(state, {"ada": True, "bea": True}) == PaymentWait((("ada", 100), ("bea", 100)), REFUSED_S)
    assert REFUSED_S < UNPAYABLE_S
