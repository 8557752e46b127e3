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
own result               provider apart: fail, the provider is convicted. Provider alike: pass. In both cases a verifier
                         that is apart is convicted. If the producer of an input signed something else than it
                         committed to, it is convicted, and the sample itself is unsure
e + 6 over               what cannot be known is in doubt: an oracle that lacks full evidence joins a verdict for which
                         f+1 others have voted, and votes no sooner than a whole epoch later that it was withheld
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

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from nodewire.errors import BadInput
from nodewire.nostr.event import Event
from nodewire.oracle.case import (
    Action,
    Case,
    Convict,
    Drawn,
    Input,
    Opened,
    PublishFault,
    PublishSampled,
    PublishVerdict,
    PullOpening,
    Recompute,
    Recomputed,
    Said,
    SampledCame,
    SayVote,
    State,
    Step,
    Tick,
    Unfounded,
    VerdictCame,
    VoteCame,
)
from nodewire.protocol import certificate as _certificate
from nodewire.protocol import inventory as _inventory
from nodewire.protocol import verdict as _verdict
from nodewire.protocol.chunk import Opening
from nodewire.protocol.compare import Outcome, compare
from nodewire.protocol.inventory import Vote
from nodewire.protocol.verdict import Certificate, Verdict
from nodewire.protocol.verification import MAX_SAMPLES, Sample, Sampled

VERIFIED_EPOCHS = 4
"""A verifier's root counts up to this many epochs after the draw."""
LAST_EPOCHS = 5
"""So many epochs after the draw, a producer's opening is no longer waited for where its signed word is shown."""
OPEN_EPOCHS = 6
"""What was drawn can be pulled up to this many epochs after the draw."""
AGAIN_EPOCHS = 9
"""So many epochs after the draw every honest oracle has voted, and the second ballot begins."""
KEPT_EPOCHS = 16
"""A sample and the votes on it are forgotten this many epochs after its draw."""
MAX_DRAWN = 1_024
"""Samples that are judged of one epoch: the first in the order in which they come."""
MAX_EARLY = 1_024
"""Votes of one oracle on samples that are not known here (yet)."""


Found = Literal["pass", "fail", "withheld", "unsure"]


def apply(what: Input, state: State) -> Step:
    """The state after `what`, and what the oracle must now do, in order. Malformed input changes nothing."""
    keys: Iterable[str] = ()
    actions: tuple[Action, ...] = ()
    match what:
        case Tick(now_ms):
            before, state = state.epoch, replace(state, now_ms=max(now_ms, state.now_ms))
            begins, state = state.epoch > before, _swept(state) if state.epoch > before else state
            state, actions = _publish_due(state)
            actions += _joins_unknown(state) if begins else ()
            keys = tuple(state.cases)
        case Drawn():
            state = _drawn(what, state)
            state, actions = _publish_due(state)
            keys = tuple(state.cases)
        case SampledCame(sampled):
            state = _published(sampled, state)
        case Opened(key):
            state, keys = _opened(what, state), (key,)
        case Recomputed(key, unopened=witness):
            state, keys = _recomputed(what, state), (key,) if witness is None else (key, witness.key)
        case VoteCame(event):
            state, actions, keys = _vote_came(event, state)
        case Said(ballot, verdict):
            key = _sample_of(ballot)
            if (case := state.cases.get(key)) is not None and ballot == key:
                state = state.with_case(replace(case, said=True, verdict=verdict))
            elif case is not None:
                state = state.with_case(replace(case, said_again=True, second=verdict))
            keys = (key,)
        case VerdictCame(certificate):
            state, actions = _verdict_came(certificate, state)
        case Unfounded(complaint):
            state, actions = _unfounded(what, state)
            keys = (complaint.key,)
    for key in keys:
        if key in state.cases:
            state, more = _consider(state.cases[key], state)
            actions += more
    return state, actions


# ---- what comes in ------------------------------------------------------------------------------------------------


def _drawn(what: Drawn, state: State) -> State:
    if what.epoch <= state.read:
        return state
    cases = {key: _with_others(_with_verifier(case, what, state), what) for key, case in state.cases.items()}
    fresh = [sample for sample in what.samples if sample.key not in cases and sample.request in what.manifests]
    fresh = fresh[:MAX_DRAWN]
    by_request: dict[str, list[Sample]] = {}
    for sample in fresh:
        cases[sample.key] = Case(
            sample,
            what.epoch,
            what.manifests[sample.request],
            audited=sample.key in what.audited,
            others=what.others.get(sample.key, ()),
        )
        by_request.setdefault(sample.request, []).append(sample)
    to_publish = dict(state.to_publish)
    for request, samples in by_request.items():
        to_publish[what.epoch, request] = tuple(
            Sampled(
                committee=state.digest,
                epoch=what.epoch,
                certificate=what.certificate,
                request=request,
                samples=tuple(samples[i : i + _SAMPLES_OF_AN_EVENT]),
            )
            for i in range(0, len(samples), _SAMPLES_OF_AN_EVENT)
        )
    drawn_ms = {**state.drawn_ms, what.epoch: state.now_ms}
    return replace(state, read=what.epoch, cases=cases, to_publish=to_publish, drawn_ms=drawn_ms)


_SAMPLES_OF_AN_EVENT = min(MAX_SAMPLES, 96)
"""96 samples with three verifiers each stay below what Sampled may hold."""


MAX_OTHERS = 8
"""Nodes that are asked whether a root that they committed to as well is their own."""


def _with_others(case: Case, what: Drawn) -> Case:
    """The case with those whom this epoch shows to have committed to the same root."""
    found = list(case.others)
    for (provider, request, task, chunk, attempt), root in what.roots.items():
        if root == case.sample.root and provider != case.sample.provider and len(found) < MAX_OTHERS:
            other = Sample(
                provider=provider, request=request, task=task, chunk=chunk, attempt=attempt, root=root, verifiers=()
            )
            if other.key not in {one.key for one in found}:
                found.append(other)
    return replace(case, others=tuple(found)) if case.done is None else case


def _unfounded(what: Unfounded, state: State) -> Step:
    """Nothing is left to find out: vote that what was claimed is withheld."""
    complaint = what.complaint
    if complaint.key in state.cases:
        return state, ()
    due = complaint.due
    claimed = Sample(
        provider=complaint.provider,
        request=complaint.request,
        task=what.task,
        chunk=due.chunk,
        attempt=due.attempt,
        root=due.root,
        verifiers=(),
    )
    return _vote(Case(claimed, what.epoch, None, complaint=complaint), "withheld", (), (), state)


def _with_verifier(case: Case, what: Drawn, state: State) -> Case:
    """The case with the verifiers whose roots this epoch certifies; the first decides."""
    if not case.epoch < what.epoch <= case.epoch + VERIFIED_EPOCHS:
        return case
    sample, known = case.sample, [] if case.verifier is None else [case.verifier, *case.reserves]
    for verifier in sample.verifiers:
        root = what.roots.get((verifier, sample.request, sample.task, sample.chunk, sample.attempt))
        is_new = all(verifier != other for other, _ in known)
        if root is not None and root != sample.root and is_new:  # the same root is a copy
            known.append((verifier, root))
    return replace(case, verifier=known[0], reserves=tuple(known[1:])) if known else case


def _published(sampled: Sampled, state: State) -> State:
    """What was published truly need not be published again."""
    place = sampled.epoch, sampled.request
    left = tuple(mine for mine in state.to_publish.get(place, ()) if mine != sampled)
    if not left:
        return replace(state, to_publish={key: rest for key, rest in state.to_publish.items() if key != place})
    return replace(state, to_publish={**state.to_publish, place: left})


def _publish_due(state: State) -> Step:
    due = []
    for epoch, request in state.to_publish:
        since_ms = state.drawn_ms.get(epoch, state.now_ms)
        if state.committee.leader(epoch) == state.me or state.now_ms >= since_ms + state.committee.skew_ms:
            due.append((epoch, request))
    fresh = [place for place in due if place[0] + OPEN_EPOCHS >= state.epoch]
    actions = tuple(PublishSampled(sampled) for place in fresh for sampled in state.to_publish[place])
    rest = {place: sampled for place, sampled in state.to_publish.items() if place not in due}
    return replace(state, to_publish=rest), actions


def _opened(what: Opened, state: State) -> State:
    case, node, opening = state.cases.get(what.key), what.node, what.opening
    if case is None:
        return state
    case = replace(case, waiting=case.waiting - {what.other or node})
    sample = case.sample
    if what.other:
        other = next((one for one in case.others if one.key == what.other), None)
        if (
            other is not None
            and opening is not None
            and _is_of(opening, other)
            and opening.author == other.provider
            and opening.root() == sample.root
        ):
            case = replace(case, copied=True)
        return state.with_case(case)
    if node == sample.provider:
        root = sample.root
    elif case.verifier is not None and node == case.verifier[0]:
        root = case.verifier[1]
    else:
        return state
    if opening is not None and opening.author == node and _is_of(opening, sample) and opening.root() == root:
        case = replace(case, theirs=opening) if node == sample.provider else replace(case, checked=opening)
    return state.with_case(case)


def _is_of(opening: Opening, sample: Sample) -> bool:
    """Whether it is of the chunk that the sample is of."""
    return (opening.request, opening.task, opening.chunk, opening.attempt) == (
        sample.request,
        sample.task,
        sample.chunk,
        sample.attempt,
    )


def _recomputed(what: Recomputed, state: State) -> State:
    case, leaves = state.cases.get(what.key), what.leaves
    if case is None:
        return state
    lied = what.equivocation
    if lied is not None and lied.culprit == case.sample.provider:
        lied = None  # what it sent to itself says nothing
    case = replace(case, waiting=case.waiting - {""}, withheld=case.withheld or what.withheld, equivocation=lied)
    if leaves is not None:
        assert case.manifest is not None
        sample, order = case.sample, {edge.name: i for i, edge in enumerate(case.manifest.edges)}
        mine = Opening(
            author=state.me,
            request=sample.request,
            task=sample.task,
            chunk=sample.chunk,
            attempt=sample.attempt,
            secret=bytes(32),  # it is never committed to
            leaves=tuple(sorted(leaves, key=lambda leaf: (order[leaf.edge], leaf.seq))),
        )
        case = replace(case, mine=mine)
    state = state.with_case(case)
    unopened = what.unopened
    if unopened is not None and unopened.provider != case.sample.provider and unopened.key not in state.cases:
        state = state.with_case(Case(unopened, case.epoch, case.manifest, witness=True))
    return state


def _vote_came(event: Event, state: State) -> tuple[State, tuple[Action, ...], tuple[str, ...]]:
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
    key = _sample_of(ballot)
    if key not in state.cases:
        early = sum(
            vote.oracle in votes for other, votes in state.votes.items() if _sample_of(other) not in state.cases
        )
        if early >= MAX_EARLY:
            return state, (), ()
    votes = {**state.votes, ballot: {**mine, vote.oracle: event}}
    state = replace(state, votes=votes, heard={ballot: state.epoch, **state.heard})
    return state, (), (key,)


def _ballot_of(vote: Vote) -> str | None:
    ballot = vote.topic.removeprefix("verdict/")
    key = _sample_of(ballot)
    named = vote.topic == _verdict.topic(ballot) and ballot in (key, _verdict.second(key))
    return ballot if named and len(key) == 64 and key.isalnum() else None


def _sample_of(ballot: str) -> str:
    return ballot[:64]


def _x(vote: Event) -> str:
    return vote.tag("x") or ""


def _verdict_came(certificate: Certificate, state: State) -> Step:
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
        state, more, _ = _vote_came(event, state)
        actions += more
    return _closed(state.cases[key], certificate, state, actions)


def _closed(case: Case, certificate: Certificate, state: State, actions: tuple[Action, ...]) -> Step:
    # the openings are as large as anything here, and nothing needs them any more
    case = replace(case, done=certificate, theirs=None, checked=None, mine=None)
    state, more = _convicted(certificate, state.with_case(case))
    return state, (*actions, *more)


def _convicted(certificate: Certificate, state: State) -> Step:
    fresh = [one for one in certificate.verdict.convicted if one not in state.convicted]
    return replace(state, convicted=state.convicted.union(fresh)), tuple(Convict(one, certificate) for one in fresh)


def _swept(state: State) -> State:
    """Without what is too old to matter."""
    oldest = state.epoch - KEPT_EPOCHS
    cases = {key: case for key, case in state.cases.items() if case.epoch >= oldest}
    kept = {
        ballot
        for ballot, epoch in state.heard.items()
        if (key := _sample_of(ballot)) in cases or (key not in state.cases and epoch >= state.epoch - OPEN_EPOCHS)
    }
    return replace(
        state,
        cases=cases,
        votes={key: votes for key, votes in state.votes.items() if key in kept},
        heard={key: epoch for key, epoch in state.heard.items() if key in kept},
        accused=frozenset(place for place in state.accused if place[1] in kept),
        to_publish={place: sampled for place, sampled in state.to_publish.items() if place[0] >= oldest},
        drawn_ms={epoch: at for epoch, at in state.drawn_ms.items() if epoch >= oldest},
    )


# ---- one case -----------------------------------------------------------------------------------------------------


def _consider(case: Case, state: State) -> Step:
    """Take the case as far as it goes."""
    if case.done is not None:
        return state, ()
    state, actions = _again(case, state) if case.said else _judge(case, state)
    case = state.cases[case.key]
    if case.done is None:
        state, more = _certify(case, state)
        actions += more
    return state, actions


def _judge(case: Case, state: State) -> Step:
    sample = case.sample
    if case.copied and case.theirs is None:
        return _vote(case, "fail", (), (sample.provider,), state)
    if case.witness and case.theirs is not None:
        return _join(case, state) or (state, ())  # it has been opened, and that is all, if others saw it, too
    if state.epoch > case.epoch + OPEN_EPOCHS:
        return _doubt(case, state)
    unverified = case.witness or not sample.verifiers or state.read >= case.epoch + VERIFIED_EPOCHS
    if case.verifier is None and not unverified and state.epoch <= case.epoch + VERIFIED_EPOCHS + 1:
        return state, ()
    if case.theirs is None:
        pull = PullOpening(sample, case.epoch, sample.provider, case.key)
        state, actions = _ask(case, sample.provider, pull, state)
        for other in case.others:
            pull = PullOpening(other, case.epoch, other.provider, case.key)
            state, more = _ask(state.cases[case.key], other.key, pull, state)
            actions += more
        return _with_pull(case.key, state, actions)
    return _with_pull(case.key, *_compared(case, state))


def _with_pull(key: str, state: State, actions: tuple[Action, ...]) -> Step:
    """Beside all else, ask for the opening of the verifier that decides."""
    case = state.cases[key]
    if case.verifier is None or case.checked is not None or case.said:
        return state, actions
    verifier = case.verifier[0]
    state, more = _ask(case, verifier, PullOpening(case.sample, case.epoch, verifier, case.key), state)
    return state, (*actions, *more)


def _compared(case: Case, state: State) -> Step:
    """With the provider's opening at hand."""
    theirs, sample = case.theirs, case.sample
    assert theirs is not None
    if case.verifier is not None:
        verifier = case.verifier[0]
        is_silent = case.checked is None and verifier in case.asked and verifier not in case.waiting
        if is_silent and case.reserves and state.epoch >= case.epoch + LAST_EPOCHS:  # it takes nobody's place
            return state.with_case(replace(case, verifier=case.reserves[0], reserves=case.reserves[1:])), ()
        if case.checked is None:
            if state.epoch < case.epoch + OPEN_EPOCHS:
                return state, ()
            if (joined := _join(case, state)) is not None:  # it has shown it to others
                return joined
        if case.checked is not None and not case.disputed:
            if not case.audited and _outcome(case, case.checked, theirs) == "pass":
                return _vote(case, "pass", ((verifier, True),), (), state)
            case = replace(case, disputed=True)
            state = state.with_case(case)
    if case.grey or (case.mine is None and not state.can_recompute):
        return state, ()
    if case.equivocation is not None:
        one = case.equivocation
        return _vote(case, "unsure", (), (one.culprit,), state, equivocated=(one.edge, one.chunk))
    if case.mine is None:
        again = "" in case.asked and "" not in case.waiting and state.epoch >= case.epoch + LAST_EPOCHS
        if again and (joined := _join(case, state)) is not None:
            return joined
        return _ask(case, "", Recompute(sample, case.epoch, again), state)
    if case.verifier is not None and case.checked is None:
        return state, ()  # who has seen the verifier's opening votes before who has not (`_doubt`)
    return _decided(case, state)


def _decided(case: Case, state: State) -> Step:
    """With the provider's opening and one's own result."""
    sample = case.sample
    assert case.theirs is not None
    assert case.mine is not None
    found = _outcome(case, case.mine, case.theirs)
    if found == "grey":
        return state.with_case(replace(case, grey=True)), ()
    verifiers: tuple[tuple[str, bool], ...] = ()
    convicted: tuple[str, ...] = (sample.provider,) if found == "fail" else ()
    if case.verifier is not None:
        verifier = case.verifier[0]
        own = "silent" if case.checked is None else _outcome(case, case.mine, case.checked)
        verifiers = ((verifier, own in ("pass", "grey")),)
        if own == "fail":
            convicted += (verifier,)
    return _vote(case, found, verifiers, convicted, state)


def _outcome(case: Case, mine: Opening, theirs: Opening) -> Outcome:
    assert case.manifest is not None
    return compare(case.manifest, case.sample.task, mine, theirs).outcome


def _ask(case: Case, what: str, action: Action, state: State) -> Step:
    """The action, unless it is under way or was tried less than half an epoch ago."""
    last_ms = case.asked.get(what)
    if what in case.waiting or (last_ms is not None and state.now_ms < last_ms + state.committee.epoch_ms // 2):
        return state, ()
    case = replace(case, waiting=case.waiting | {what}, asked={**case.asked, what: state.now_ms})
    return state.with_case(case), (action,)


def _doubt(case: Case, state: State) -> Step:
    """Past the deadline: join f+1 others, later say what is in doubt."""
    if (joined := _join(case, state)) is not None:
        return joined
    if state.epoch <= case.epoch + OPEN_EPOCHS + 1:
        return state, ()
    if case.mine is not None and case.theirs is not None and not case.grey:
        decided = _decided(case, state)
        if decided[1]:
            return decided
    return _vote(case, "withheld" if case.theirs is None or case.withheld else "unsure", (), (), state)


def _join(case: Case, state: State) -> Step | None:
    """Vote as f+1 others have, of whom one is honest and has seen what is missing here; None if they have not."""
    key = case.key
    count = Counter(_x(event) for oracle, event in state.votes.get(key, {}).items() if oracle != state.me)
    joined = [x for x, n in sorted(count.items()) if n > state.committee.f]
    if not joined:
        return None
    state = state.with_case(replace(case, said=True))
    return state, (SayVote(key, case.epoch, max(joined, key=lambda x: count[x]), None),)


def _joins_unknown(state: State) -> tuple[Action, ...]:
    """Votes on what is no case here, and f+1 others have found for two epochs: a node showed it to this oracle only."""
    found: list[Action] = []
    for ballot, votes in state.votes.items():
        if ballot in state.cases or len(ballot) != 64 or state.me in votes or state.heard[ballot] > state.epoch - 2:
            continue
        count = Counter(map(_x, votes.values()))
        found += [SayVote(ballot, state.epoch, x, None) for x, n in sorted(count.items()) if n > state.committee.f][:1]
    return tuple(found)


def _vote(
    case: Case,
    outcome: Found,
    verifiers: tuple[tuple[str, bool], ...],
    convicted: tuple[str, ...],
    state: State,
    equivocated: tuple[str, int] | None = None,
) -> Step:
    verdict = _verdict_on(case, outcome, verifiers, convicted, state, equivocated)
    case = replace(case, said=True, verdict=verdict, theirs=None, checked=None, mine=None)
    return state.with_case(case), (SayVote(case.key, case.epoch, verdict.digest(), verdict),)


def _again(case: Case, state: State) -> Step:
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
    )


def _certify(case: Case, state: State) -> Step:
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
