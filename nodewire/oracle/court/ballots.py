"""Votes on samples, heard and said, and the certificates that they make. See `verdict_rules`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from nodewire.errors import BadInput
from nodewire.oracle.court.case import (
    AGAIN_EPOCHS,
    Action,
    Case,
    Convict,
    PublishFault,
    PublishVerdict,
    SayVote,
    State,
    Step,
)
from nodewire.protocol.committee import oracle_round as _inventory
from nodewire.protocol.committee import quorum_certificate as _certificate
from nodewire.protocol.committee.oracle_round import Vote
from nodewire.protocol.verification import verdict as _verdict
from nodewire.protocol.verification.verdict import Certificate, Verdict

if TYPE_CHECKING:
    from nodewire.nostr.event import Event

MAX_EARLY = 1_024
"""Votes of one oracle on samples that are not known here (yet)."""


Found = Literal["pass", "fail", "withheld", "unsure"]


def vote_came(event: Event, state: State) -> tuple[State, tuple[Action, ...], tuple[str, ...]]:
    """Anybody's vote, and the keys of cases that it may decide. A second, other one in a ballot proves a fault."""
    try:
        vote = _inventory.parse(event)
    except BadInput:
        return state, (), ()
    ballot = _ballot_of(vote) if isinstance(vote, Vote) else None
    if not isinstance(vote, Vote) or ballot is None:
        return state, (), ()
    if vote.committee != state.digest or state.committee.oracle(vote.oracle) is None:
        return state, (), ()
    mine = state.votes.get(ballot, {})
    first = mine.get(vote.oracle)
    if first is not None:
        place = vote.oracle, ballot
        if place in state.accused or _x(first) == vote.x:
            return state, (), ()
        fault = _certificate.contradiction(first, event)
        return replace(state, accused=state.accused | {place}), (PublishFault(fault),), ()
    key = sample_of(ballot)
    if key not in state.cases:
        early = sum(vote.oracle in votes for other, votes in state.votes.items() if sample_of(other) not in state.cases)
        if early >= MAX_EARLY:
            return state, (), ()
    votes = {**state.votes, ballot: {**mine, vote.oracle: event}}
    state = replace(state, votes=votes, heard={ballot: state.epoch, **state.heard})
    return state, (), (key,)


def joins_unknown(state: State) -> tuple[Action, ...]:
    """Votes on what is no case here, and f+1 others have found for two epochs: a node showed it to this oracle only."""
    found: list[Action] = []
    for ballot, votes in state.votes.items():
        if ballot in state.cases or len(ballot) != 64 or state.me in votes or state.heard[ballot] > state.epoch - 2:
            continue
        count = Counter(map(_x, votes.values()))
        found += [SayVote(ballot, state.epoch, x, None) for x, n in sorted(count.items()) if n > state.committee.f][:1]
    return tuple(found)


def join(case: Case, state: State) -> Step | None:
    """Vote as f+1 others have, of whom one is honest and has seen what is missing here; None if they have not."""
    key = case.key
    count = Counter(_x(event) for oracle, event in state.votes.get(key, {}).items() if oracle != state.me)
    joined = [x for x, n in sorted(count.items()) if n > state.committee.f]
    if not joined:
        return None
    state = state.with_case(replace(case, said=True))
    return state, (SayVote(key, case.epoch, max(joined, key=lambda x: count[x]), None),)


def vote(
    case: Case,
    outcome: Found,
    verifiers: tuple[tuple[str, bool], ...],
    convicted: tuple[str, ...],
    state: State,
    equivocated: tuple[str, int] | None = None,
) -> Step:
    """Say this of the case, in the first ballot; nothing that it was judged by is needed any more."""
    verdict = _verdict_on(case, outcome, verifiers, convicted, state, equivocated)
    case = replace(case, said=True, verdict=verdict, theirs=None, checked=None, mine=None, frames=None, reference=())
    return state.with_case(case), (SayVote(case.key, case.epoch, verdict.digest(), verdict),)


def again(case: Case, state: State) -> Step:
    """Vote in the second ballot, if the first has come to nothing though all have had their time."""
    if case.said_again or case.complaint is not None or state.epoch < case.epoch + AGAIN_EPOCHS:
        return state, ()
    key = case.key
    count = Counter(map(_x, state.votes.get(key, {}).values()))
    most = max(count.values(), default=0)
    known = {verdict.digest(): verdict for verdict in _verdicts_on(case, state)}
    if most > state.committee.f:
        order = list(known)
        x = min(
            (x for x, n in count.items() if n == most), key=lambda x: (order.index(x) if x in known else len(order), x)
        )
    else:
        own = case.verdict.outcome if case.verdict is not None else "unsure"
        x = _verdict_on(case, "withheld" if own in ("fail", "withheld") else "unsure", (), (), state).digest()
    verdict = known.get(x, case.verdict if case.verdict is not None and case.verdict.digest() == x else None)
    state = state.with_case(replace(case, said_again=True, second=verdict))
    return state, (SayVote(_verdict.second(key), case.epoch, x, verdict),)


def _verdicts_on(case: Case, state: State) -> list[Verdict]:
    """What honest oracles may have found of the sample, but for equivocations, the mildest first."""
    found: list[tuple[Found, tuple[tuple[str, bool], ...], tuple[str, ...]]] = [("unsure", (), ()), ("pass", (), ())]
    provider, verifiers = case.sample.provider, case.sample.verifiers
    found[1:1] = [("unsure", ((one, agrees),), ()) for agrees in (False, True) for one in verifiers]
    found += [("pass", ((one, agrees),), ()) for agrees in (False, True) for one in verifiers]
    found += [("pass", ((one, False),), (one,)) for one in verifiers]
    found += [("withheld", (), ()), ("fail", (), (provider,))]
    found += [("fail", ((one, agrees),), (provider,)) for agrees in (False, True) for one in verifiers]
    found += [("fail", ((one, False),), (provider, one)) for one in verifiers]
    return [_verdict_on(case, outcome, verifiers, convicted, state) for outcome, verifiers, convicted in found]


def _verdict_on(
    case: Case,
    outcome: Found,
    verifiers: tuple[tuple[str, bool], ...],
    convicted: tuple[str, ...],
    state: State,
    equivocated: tuple[str, int] | None = None,
) -> Verdict:
    sample = case.sample
    return Verdict(
        committee=state.digest,
        epoch=case.epoch,
        request=sample.request,
        task=sample.task,
        chunk=sample.chunk,
        attempt=sample.attempt,
        provider=sample.provider,
        root=sample.root,
        outcome=outcome,
        culprit=convicted[0] if convicted else "",
        verifiers=verifiers,
        accomplices=convicted[1:],
        equivocated=equivocated,
        claimed=case.complaint.claim.id if case.complaint is not None else "",
        claimed_msat=case.complaint.due.amount_msat if case.complaint is not None else 0,
        price_msat=case.parties.price_msat if outcome == "pass" else 0,
    )


def certify(case: Case, state: State) -> Step:
    """Publish the certificate of the verdict that this oracle voted for, in its turn."""
    key = case.key
    for ballot, verdict in ((key, case.verdict), (_verdict.second(key), case.second)):
        x = verdict.digest() if verdict is not None else None
        votes = [event for _, event in sorted(state.votes.get(ballot, {}).items()) if _x(event) == x]
        if verdict is not None and len(votes) >= state.committee.quorum:
            return _certified(case, Certificate(verdict, tuple(votes)), state)
    return state, ()


def _certified(case: Case, certificate: Certificate, state: State) -> Step:
    if case.quorum_ms is None:
        case = replace(case, quorum_ms=state.now_ms)
        state = state.with_case(case)
    turn = state.committee.leader(case.epoch) == state.me
    if not turn and case.quorum_ms is not None and state.now_ms < case.quorum_ms + state.committee.skew_ms:
        return state, ()
    return _closed(case, certificate, state, (PublishVerdict(certificate),))


def verdict_came(certificate: Certificate, state: State) -> Step:
    """Close the case; every vote in the certificate counts as heard. A certificate that proves nothing is nothing."""
    key = certificate.verdict.key
    case = state.cases.get(key)
    if case is None and state.convicted.issuperset(certificate.verdict.convicted):
        return state, ()
    if case is not None and case.done is not None:
        return state, ()
    try:
        certificate.check(state.committee)
    except BadInput:
        return state, ()
    if case is None:
        return _convicted(certificate, state)
    actions: tuple[Action, ...] = ()
    for event in certificate.votes:
        state, more, _ = vote_came(event, state)
        actions += more
    return _closed(state.cases[key], certificate, state, actions)


def _closed(case: Case, certificate: Certificate, state: State, actions: tuple[Action, ...]) -> Step:
    # the openings are as large as anything here, and nothing needs them any more
    case = replace(case, done=certificate, theirs=None, checked=None, mine=None, frames=None, reference=())
    state, more = _convicted(certificate, state.with_case(case))
    return state, (*actions, *more)


def _convicted(certificate: Certificate, state: State) -> Step:
    fresh = [one for one in certificate.verdict.convicted if one not in state.convicted]
    return replace(state, convicted=state.convicted.union(fresh)), tuple(Convict(one, certificate) for one in fresh)


def _ballot_of(vote: Vote) -> str | None:
    ballot = vote.topic.removeprefix("verdict/")
    key = sample_of(ballot)
    named = vote.topic == _verdict.topic(ballot) and ballot in (key, _verdict.second(key))
    return ballot if named and len(key) == 64 and key.isalnum() else None


def sample_of(ballot: str) -> str:
    return ballot[:64]


def _x(vote: Event) -> str:
    return vote.tag("x") or ""
