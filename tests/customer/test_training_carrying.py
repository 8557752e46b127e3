"""What is asked of whom: what a provider carries on where its result counted, and nothing where it has lost it."""

from __future__ import annotations

from dataclasses import replace

from nodewire.customer.training import carrying
from nodewire.customer.training.actions import Publish
from nodewire.customer.training.events import (
    Begun,
    Contribution,
    Judged,
    Lost,
    Opened,
    Published,
    Received,
    ResultCame,
    Row,
    Sealed,
    Stepped,
)
from nodewire.customer.training.pending import pending
from nodewire.customer.training.state import State, Work
from nodewire.customer.training.transitions import apply

BLOB = Sealed("aa" * 32, 100, "bb" * 32, "cc" * 32)
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
    events = [Opened(3, (BLOB, BLOB), BLOB), Published(0, "r0", "{}", (row(0, "ada"), row(1, "bea")))]
    for provider in ("ada", "bea"):
        events += [
            Begun("r0", provider),
            ResultCame("r0", provider, "{}", 5),
            Received("r0", provider, carried if provider == "ada" else ""),
            Judged("r0", provider, True, ""),
        ]
    made = (counted(0, "ada"), counted(1, "bea")) if counts else (counted(1, "bea"),)
    return after(*events, Stepped(0, 5, BLOB, made))


def test_a_provider_goes_on_from_what_it_has_committed_to():
    dealt = {0: "ada", 1: "bea"}
    assert carrying.left(done(), dealt, [0, 1]) == {0: LEFT}
    assert carrying.left(done(), dealt, [1]) == {}
    assert carrying.left(done(carrying.NOTHING), dealt, [0, 1]) == {}


def test_who_takes_over_or_did_not_count_or_was_late_begins_with_nothing():
    assert carrying.left(done(), {0: "cyd", 1: "bea"}, [0, 1]) == {}
    assert carrying.left(done(), {0: "bea", 1: "ada"}, [0, 1]) == {}
    assert carrying.left(done(counts=False), {0: "ada", 1: "bea"}, [0, 1]) == {}
    late = replace(done(), counted=(counted(0, "ada", -1),))
    assert carrying.left(late, {0: "ada", 1: "bea"}, [0, 1]) == {}


def test_who_has_lost_it_is_asked_once_more_with_nothing_and_then_given_up():
    asked = after(Published(1, "r1", "{}", (row(0, "ada"), row(1, "bea"))), state=done())
    again = after(Lost("r1", "ada", "not-carried"), state=asked)
    assert again.works[0] == Work(0, provider="ada", afresh=True)
    assert again.failures == () and again.paid_last["ada"] == "r0"
    assert Publish(1, (0,)) in pending(again)
    assert carrying.left(again, {0: "ada"}, [0]) == {}
    given_up = after(
        Published(1, "r2", "{}", (row(0, "ada"),)), Begun("r2", "ada"), Lost("r2", "ada", "not-carried"), state=again
    )
    assert given_up.works[0].excluded == {"ada"} and given_up.failures == (("ada", "not-carried"),)
    stepped = after(Published(1, "r3", "{}", (row(0, "cyd"),)), state=given_up)
    assert not stepped.works[0].afresh
