"""How long an oracle's loop is held hardly grows with the market: a slice's work is counted, not timed.

Work is counted in calls of Python functions between two marks. Seconds would say how busy the machine is.
"""

from __future__ import annotations

import sys
from random import Random

from nodewire.oracle.committee import rules
from nodewire.oracle.committee.derivation import Derivation
from nodewire.oracle.committee.state import BlobCame, Derive, SayInventory, Tick, VerifiedEvent, start
from nodewire.protocol.committee import oracle_round
from nodewire.protocol.market import snapshot
from tests.protocol.committee.actors import HOLDER, Provider, committee, digest

COMMITTEE, SEATS = committee(bond_holders=(HOLDER.public,), epoch_ms=10_000, skew_ms=2_000, beat_ms=3_000)
FEW, MANY = 24, 192
MOST_PER_NODE = 8
"""Calls by which the longest slice may grow with each node: a sort and a copy are quick. Each mark saves dozens."""


def nodes(number):
    names = [f"stage.{n}" for n in range(8)]
    held = [(name, 10, 500) for name in names]
    return [Provider(f"n{i}", COMMITTEE, {digest("model"): (held, 2)}, bond_msat=10**8) for i in range(number)]


class Counted:
    """Drives sliced work, and counts the calls of each slice."""

    def __init__(self):
        self.longest = self.calls = 0

    def __call__(self, work):
        def called(frame, event, argument):
            if event in ("call", "c_call"):
                self.calls += 1

        while True:
            self.calls = 0
            sys.setprofile(called)
            try:
                next(work)
            except StopIteration as done:
                return done.value
            finally:
                sys.setprofile(None)
                self.longest = max(self.longest, self.calls)


def longest_slices(number):
    """By step of a round, the calls of the longest slice."""
    state, found = start(COMMITTEE, SEATS[0].keys.public), {}
    epoch = next(e for e in range(4, 8) if COMMITTEE.leader(e) == SEATS[0].keys.public)
    state = rules.apply(Tick(COMMITTEE.close_ms(epoch - 1) + 1), state)[0]
    everybody = nodes(number)
    for one in everybody:
        for event in (one.beat(epoch), one.ad, one.bond):
            state = rules.apply(VerifiedEvent(event), state)[0]

    def counted(name, what):
        nonlocal state
        measured = Counted()
        state, actions = measured(rules.sliced(what, state))
        found[name] = measured.longest
        return actions

    counted("prune", Tick(COMMITTEE.close_ms(epoch) + 1))
    (said,) = [a for a in counted("list", Tick(COMMITTEE.close_ms(epoch) + 2_001)) if isinstance(a, SayInventory)]
    assert len(said.inventory.bonded) == number
    for seat in SEATS:
        event, blob = oracle_round.build_inventory(seat.keys, said.inventory, created_at=1)
        actions = counted("inventory", VerifiedEvent(event))
        if blob is not None:
            actions += counted("blob", BlobCame(snapshot.sha256(blob), blob))
    (work,) = [action.work for action in actions if isinstance(action, Derive)]
    measured = Counted()
    derived = measured(work.sliced())
    found["derive"] = measured.longest
    assert len(derived.snapshot.nodes) == number
    measured = Counted()
    assert measured(snapshot.unpacked(derived.blob, derived.sha256)) == derived.snapshot
    found["unpack"] = measured.longest
    lacking = {id_: event for id_, event in work.known.items() if id_ not in work.beats}
    partly = Derivation(COMMITTEE, epoch, ("",), work.beats, (), None, lacking, {}, derived.blob)
    measured = Counted()
    assert measured(partly.sliced()).snapshot == derived.snapshot
    found["events of a proposal"] = measured.longest
    return found


def test_no_slice_of_an_oracles_round_looks_into_every_node():
    few, many = longest_slices(FEW), longest_slices(MANY)
    per_node = {name: round((many[name] - few[name]) / (MANY - FEW), 1) for name in few}
    assert {name: calls for name, calls in per_node.items() if calls > MOST_PER_NODE} == {}


def test_marks_change_no_result():
    state = start(COMMITTEE, SEATS[0].keys.public)
    chance, inputs = Random(1), []
    for one in nodes(8):
        inputs += [VerifiedEvent(event) for event in (one.beat(0), one.ad, one.bond)]
    chance.shuffle(inputs)
    inputs += [Tick(COMMITTEE.close_ms(0) + ms) for ms in (1, 2_001, 4_001)]
    sliced = state
    for what in inputs:
        state, actions = rules.apply(what, state)
        sliced, others = Counted()(rules.sliced(what, sliced))
        assert (sliced, others) == (state, actions)
