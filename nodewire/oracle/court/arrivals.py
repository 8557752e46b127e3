"""What comes in of samples, put where it belongs: draws, roots, openings, results."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nodewire.oracle.court.ballots import sample_of
from nodewire.oracle.court.case import (
    FRAMES,
    KEPT_EPOCHS,
    OPEN_EPOCHS,
    VERIFIED_EPOCHS,
    Case,
    EpochDraw,
    FramesDisclosure,
    InputsDisclosure,
    OpeningResult,
    Parties,
    PublishSamples,
    RecomputeResult,
    State,
    Step,
)
from nodewire.protocol.job.chunk import Opening
from nodewire.protocol.verification.choices import tokens_edge
from nodewire.protocol.verification.sample import MAX_SAMPLES, JobSamples, Sample

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DRAWN = 1_024
"""Samples that are judged of one epoch: the first in the order in which they come."""
_SAMPLES_OF_AN_EVENT = min(MAX_SAMPLES, 96)
"""96 samples with three verifiers each stay below what Sampled may hold."""


MAX_OTHERS = 8
"""Nodes that are asked whether a root that they committed to as well is their own."""


def drawn(what: EpochDraw, state: State) -> State:
    """An epoch was read: new cases, and what it shows of those there are."""
    cases = {key: _with_others(_with_verifiers(case, what), what) for key, case in state.cases.items()}
    judged = [sample for sample in what.samples if sample.request in what.manifests][:MAX_DRAWN]
    fresh = [sample for sample in judged if _is_new(sample, what.epoch, cases)]
    by_request: dict[str, list[Sample]] = {}
    for sample in fresh:
        cases[sample.key] = Case(
            sample,
            what.epoch,
            what.manifests[sample.request],
            audited=sample.key in what.audited,
            inspected=sample.key in what.inspected,
            parties=what.parties.get(sample.key, Parties()),
            others=what.others.get(sample.key, ()),
        )
        by_request.setdefault(sample.request, []).append(sample)
    to_publish = dict(state.to_publish)
    for request, samples in by_request.items():
        to_publish[what.epoch, request] = tuple(
            JobSamples(
                committee=state.digest,
                epoch=what.epoch,
                certificate=what.certificate,
                request=request,
                samples=tuple(samples[i : i + _SAMPLES_OF_AN_EVENT]),
            )
            for i in range(0, len(samples), _SAMPLES_OF_AN_EVENT)
        )
    drawn_ms = {what.epoch: state.now_ms, **state.drawn_ms}
    return replace(state, read=max(what.epoch, state.read), cases=cases, to_publish=to_publish, drawn_ms=drawn_ms)


def _with_others(case: Case, what: EpochDraw) -> Case:
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


def _is_new(sample: Sample, epoch: int, cases: Mapping[str, Case]) -> bool:
    """Whether it is no case yet, or one of a later epoch: this one, read late, held its root before that."""
    case = cases.get(sample.key)
    return case is None or (epoch < case.epoch and not case.said and case.done is None)


def _with_verifiers(case: Case, what: EpochDraw) -> Case:
    """The case with the verifiers whose roots this epoch certifies."""
    if not case.epoch < what.epoch <= case.epoch + VERIFIED_EPOCHS or case.said:
        return case
    sample, verified = case.sample, dict(case.verified)
    for verifier in sample.verifiers:
        root = what.roots.get((verifier, sample.request, sample.task, sample.chunk, sample.attempt))
        is_first = verifier not in verified or what.epoch < verified[verifier][0]
        if root is not None and root != sample.root and is_first:  # the same root is a copy
            verified[verifier] = what.epoch, root
    found = replace(case, verified=verified)
    if found.verifier != case.verifier:  # another one's opening is compared
        found = replace(found, checked=None, disputed=False)
    return found


def published(sampled: JobSamples, state: State) -> State:
    """What was published truly need not be published again."""
    place = sampled.epoch, sampled.request
    left = tuple(mine for mine in state.to_publish.get(place, ()) if mine != sampled)
    if not left:
        return replace(state, to_publish={key: rest for key, rest in state.to_publish.items() if key != place})
    return replace(state, to_publish={**state.to_publish, place: left})


def publish_due(state: State) -> Step:
    """What was drawn, if publishing it is this oracle's turn."""
    due = []
    for epoch, request in state.to_publish:
        since_ms = state.drawn_ms.get(epoch, state.now_ms)
        if state.committee.leader(epoch) == state.me or state.now_ms >= since_ms + state.committee.skew_ms:
            due.append((epoch, request))
    fresh = [place for place in due if place[0] + OPEN_EPOCHS >= state.epoch]
    actions = tuple(PublishSamples(sampled) for place in fresh for sampled in state.to_publish[place])
    rest = {place: sampled for place, sampled in state.to_publish.items() if place not in due}
    return replace(state, to_publish=rest), actions


def opened(what: OpeningResult, state: State) -> State:
    """What a node showed, if it opens the root that it committed to."""
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
        if node == sample.provider:
            case = replace(case, theirs=opening)
        else:  # of tokens nothing is known that was not computed beside it
            case = replace(case, checked=opening, mine=None if _chooses(case) else case.mine)
    return state.with_case(case)


def _chooses(case: Case) -> bool:
    return case.manifest is not None and tokens_edge(case.manifest, case.sample.task) is not None


def _is_of(opening: Opening, sample: Sample) -> bool:
    """Whether it is of the chunk that the sample is of."""
    return (opening.request, opening.task, opening.chunk, opening.attempt) == (
        sample.request,
        sample.task,
        sample.chunk,
        sample.attempt,
    )


def recomputed(what: RecomputeResult, state: State) -> State:
    """What this oracle computed, or why it has not."""
    case, leaves = state.cases.get(what.key), what.leaves
    if case is None:
        return state
    lied = what.equivocation
    if lied is not None and lied.culprit == case.sample.provider:
        lied = None  # what it sent to itself says nothing
    case = replace(case, waiting=case.waiting - {""}, withheld=case.withheld or what.withheld, equivocation=lied)
    its = case.checked.root() if case.checked is not None else ""
    if leaves is not None and not (_chooses(case) and what.beside != its):
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
        reference = tuple(sorted(what.reference, key=lambda leaf: (order[leaf.edge], leaf.seq)))
        case = replace(case, mine=mine, excused=what.excused, reference=reference)
    state = state.with_case(case)
    unopened = what.unopened
    if unopened is not None and unopened.provider != case.sample.provider and unopened.key not in state.cases:
        parties = replace(case.parties, origins=frozenset(), price_msat=0)  # it is opened for that sample's sake
        state = state.with_case(Case(unopened, case.epoch, case.manifest, witness=True, parties=parties))
    return state


def inputs_shown(what: InputsDisclosure, state: State) -> State:
    """The provider has shown inputs that it had not shown before."""
    case = state.cases.get(what.key)
    return state if case is None else state.with_case(replace(case, withheld=False))


def frames_shown(what: FramesDisclosure, state: State) -> State:
    """The provider's own frames, by their leaves."""
    case = state.cases.get(what.key)
    if case is None:
        return state
    return state.with_case(replace(case, waiting=case.waiting - {FRAMES}, frames=what.leaves or case.frames))


def swept(state: State) -> State:
    """Without what is too old to matter."""
    oldest = state.epoch - KEPT_EPOCHS
    cases = {key: case for key, case in state.cases.items() if case.epoch >= oldest}
    kept = {
        ballot
        for ballot, epoch in state.heard.items()
        if (key := sample_of(ballot)) in cases or (key not in state.cases and epoch >= state.epoch - OPEN_EPOCHS)
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
