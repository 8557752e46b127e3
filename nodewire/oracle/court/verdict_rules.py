"""The committee's verdicts, pure: `apply(input, state) -> (state, actions)`. No I/O, no clock, no keys.

A sample of epoch e is judged over what every oracle reads alike: certified roots and what they open to.

certified e              the leader of e publishes what its beacon drew (8844), after a skew whoever saw nothing does
root of another's        a root that a certificate holds for another node, too, and that this one opens: fail, unless
                         the provider itself opens it (a root is its author's alone, so one of them can)
root of a verifier       the first certified after e, up to e + 4 (of one epoch the first drawn), decides whose work the
                         provider's is compared with; nobody's report does, and nobody else's root counts
                         (from e + 5 on the next one's, if the first shows nothing)
both openings            alike, and the beacon does not have it audited: pass. Else, or with no verifier (none by e + 4,
                         or its opening withheld up to e + 5), the oracle computes the task itself
alike, not identical     nothing passes, or is in doubt, by a sketch of the provider alone: its own frames are
                         pulled, and a sketch that is not theirs convicts it. Frames not shown are withheld
alike, yet suspect       results in rounded numbers that are far apart for honest ones: one in four is computed again
float32 reference        computed beside one's own result in rounded numbers: who is a third further from it fails
own result               provider apart: fail, the provider is convicted. Provider alike: pass. In both cases a verifier
                         that is apart is convicted. If the producer of an input signed something else than it
                         committed to, it is convicted, and the sample itself is unsure
own result in between    the work is in doubt: unsure, and its verifier is named as it did its part, unless f+1 others
                         have found more when e + 6 is over
e + 6 over               what cannot be known is in doubt, too: an oracle that lacks full evidence joins a verdict for
                         which f+1 others have voted, and votes no sooner than a whole epoch later that it was withheld
                         (the provider's opening, or its part of the inputs) or that it is unsure
input not opened         what the producer of an input committed to, and does not open though a sample cannot be judged
                         without it, was withheld: two neighbours would make each other pass by a word for what was
                         never sent. Who has seen it opened votes as f+1 others have
claim without roots      what a provider claimed payment for and no certificate holds in time was withheld, on complaint
2f+1 equal votes         the leader of e publishes the certificate, after a skew everybody does that can
e + 9, no 2f+1 equal     a second ballot: for what most have voted for, if f+1 have (the mildest of equals); else for
                         withheld by who found the provider in fault, for unsure by the others

A node that shows its work to a few oracles gains nothing by it: either the others join them, or they join the others
in the second ballot, where none of the faulty f is needed. An oracle votes once in a ballot (`Journal`); who is seen to
vote twice is proven a liar (8853).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nodewire.oracle.court.arrivals import (
    drawn,
    frames_shown,
    inputs_shown,
    opened,
    publish_due,
    published,
    recomputed,
    swept,
)
from nodewire.oracle.court.ballots import again, certify, joins_unknown, sample_of, verdict_came, vote_came
from nodewire.oracle.court.case import (
    Action,
    Case,
    EpochDraw,
    FramesDisclosure,
    Input,
    InputsDisclosure,
    OpeningResult,
    RecomputeResult,
    SampledCame,
    State,
    Step,
    Tick,
    UnfoundedComplaint,
    VerdictCame,
    VoteCame,
    VoteRecord,
)
from nodewire.oracle.court.trial import judge, unfounded

if TYPE_CHECKING:
    from collections.abc import Iterable


def apply(what: Input, state: State) -> Step:
    """The state after `what`, and what the oracle must now do, in order. Malformed input changes nothing."""
    keys: Iterable[str] = ()
    actions: tuple[Action, ...] = ()
    match what:
        case Tick(now_ms):
            before, state = state.epoch, replace(state, now_ms=max(now_ms, state.now_ms))
            begins, state = state.epoch > before, swept(state) if state.epoch > before else state
            state, actions = publish_due(state)
            actions += joins_unknown(state) if begins else ()
            keys = tuple(state.cases)
        case EpochDraw():
            state = drawn(what, state)
            state, actions = publish_due(state)
            keys = tuple(state.cases)
        case SampledCame(sampled):
            state = published(sampled, state)
        case OpeningResult(key):
            state, keys = opened(what, state), (key,)
        case RecomputeResult(key, unopened=witness):
            state, keys = recomputed(what, state), (key,) if witness is None else (key, witness.key)
        case InputsDisclosure():
            state = inputs_shown(what, state)
        case FramesDisclosure(key):
            state, keys = frames_shown(what, state), (key,)
        case VoteCame(event):
            state, actions, keys = vote_came(event, state)
        case VoteRecord(ballot):
            state, keys = _with_record(what, state), (sample_of(ballot),)
        case VerdictCame(certificate):
            state, actions = verdict_came(certificate, state)
        case UnfoundedComplaint(complaint):
            state, actions = unfounded(what, state)
            keys = (complaint.key,)
    state, more = _considered(keys, state)
    return state, actions + more


def _with_record(record: VoteRecord, state: State) -> State:
    """The state that knows what this oracle has said, in the first ballot or the second."""
    key = sample_of(record.key)
    case = state.cases.get(key)
    if case is None:
        return state
    if record.key == key:
        return state.with_case(replace(case, said=True, verdict=record.verdict))
    return state.with_case(replace(case, said_again=True, second=record.verdict))


def _considered(keys: Iterable[str], state: State) -> Step:
    """Go on with each case of `keys` that is open, one after the other."""
    actions: tuple[Action, ...] = ()
    for key in keys:
        if key in state.cases:
            state, more = _consider(state.cases[key], state)
            actions += more
    return state, actions


def _consider(case: Case, state: State) -> Step:
    """Take the case as far as it goes."""
    if case.done is not None:
        return state, ()
    state, actions = again(case, state) if case.said else judge(case, state)
    case = state.cases[case.key]
    if case.done is None:
        state, more = certify(case, state)
        actions += more
    return state, actions
