"""Honest oracles come to one verdict on every sample, whatever providers, verifiers and f oracles do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from nodewire.errors import Withheld
from nodewire.oracle.court import verdict_rules
from nodewire.oracle.court.arrivals import MAX_DRAWN
from nodewire.oracle.court.ballots import MAX_EARLY
from nodewire.oracle.court.case import (
    KEPT_EPOCHS,
    OPEN_EPOCHS,
    VERIFIED_EPOCHS,
    EpochDraw,
    InputsDisclosure,
    Parties,
    PublishSamples,
    Recompute,
    RecomputeResult,
    SayVote,
    Tick,
    VerdictCame,
    VoteCame,
    start,
)
from nodewire.protocol.committee import oracle_round
from nodewire.protocol.verification import sample as verification
from nodewire.protocol.verification import verdict
from nodewire.protocol.verification.statement import Equivocation
from tests.oracle.courtroom import (
    MANIFEST,
    PRICE_MSAT,
    PROVIDER,
    SECOND,
    TASK,
    VERIFIER,
    Courtroom,
    always,
    leaves,
    opened,
    sample_of,
)
from tests.protocol.committee.actors import committee, digest, keys

HONEST, CHEATING, GREY = 0.0, 0.5, 0.0003


def court_of(f=1, seed=1, faulty=None, **fields):
    document, seats = committee(f)
    faults = {seats[i].keys.public: fault for i, fault in (faulty or {}).items()}
    return Courtroom(document, seats, seed, faults=faults, **fields)


def tried(court, provider=HONEST, verifier=HONEST, *, verifier_epoch=1, until=10, audited=False):
    """One sample through the court: the provider's root drawn in epoch 0, the verifier's certified later."""
    theirs = opened(PROVIDER, provider)
    court.shows.setdefault(PROVIDER.public, always(theirs))
    court.run_epochs(1)
    court.draw(0, [sample_of(theirs.root())], audited=audited)
    for epoch in range(1, until):
        court.run_epochs(1)
        roots = []
        if verifier is not None and epoch == verifier_epoch:
            checked = opened(VERIFIER, verifier)
            court.shows.setdefault(VERIFIER.public, always(checked))
            roots = [(VERIFIER, checked)]
        court.draw(epoch, roots=roots)
    return court.verdict()


def test_honest_work_passes_without_being_computed_a_third_time():
    court = court_of()
    found = tried(court)
    assert (found.outcome, found.culprit, found.verifiers) == ("pass", "", ((VERIFIER.public, True),))
    assert not court.recomputed
    assert not court.accused()
    assert len(court.certificates()) == 1  # the leader's


def test_an_audited_sample_is_computed_by_the_oracles_though_provider_and_verifier_agree():
    court = court_of()
    found = tried(court, audited=True)
    assert (found.outcome, found.verifiers) == ("pass", ((VERIFIER.public, True),))
    assert set(court.recomputed) == set(court.honest)
    court = court_of()
    found = tried(court, provider=CHEATING, verifier=CHEATING, audited=True)  # the two are one
    assert (found.outcome, found.verifiers) == ("fail", ((VERIFIER.public, False),))
    assert (found.culprit, found.accomplices) == (PROVIDER.public, (VERIFIER.public,))
    assert all(court.convicted[oracle] == {PROVIDER.public, VERIFIER.public} for oracle in court.honest)


OTHER = keys("other")


def copied(theirs, *, in_time=True, shows=None):
    """What is found of a root that OTHER has committed to as well: in the same epoch, or in the next."""
    court = court_of(shows=shows or {PROVIDER.public: always(theirs), OTHER.public: always(theirs)})
    sample = sample_of(theirs.root(), verifiers=())
    same = sample.model_copy(update={"provider": OTHER.public})
    court.run_epochs(1)
    court.draw(0, [sample], others=[same] if in_time else ())
    for epoch in range(1, 10):
        court.run_epochs(1)
        court.draw(epoch, (), [(OTHER, theirs)] if epoch == 1 and not in_time else ())
    return court, court.verdict()


@pytest.mark.parametrize("in_time", [True, False], ids=["certified with it", "certified after it"])
def test_a_root_that_opens_to_anothers_work_was_copied(in_time):
    court, found = copied(opened(OTHER), in_time=in_time)
    assert (found.outcome, found.culprit) == ("fail", PROVIDER.public)
    assert not court.recomputed


def test_whose_root_others_copied_opens_it_and_passes():
    _, found = copied(opened(PROVIDER))
    assert (found.outcome, found.culprit) == ("pass", "")


def test_a_root_that_two_committed_to_and_nobody_opens_convicts_nobody():
    _, found = copied(opened(keys("third")))
    assert (found.outcome, found.culprit) == ("withheld", "")


def test_what_another_opens_under_the_providers_key_proves_nothing():
    theirs = opened(PROVIDER)
    _, found = copied(theirs, shows={PROVIDER.public: always(None), OTHER.public: always(theirs)})
    assert (found.outcome, found.culprit) == ("withheld", "")


@pytest.mark.parametrize("seen_by", [1, 2, 3])
@pytest.mark.parametrize("provider", [HONEST, CHEATING])
def test_a_verifier_that_shows_its_work_to_some_oracles_only_keeps_no_verdict_from_coming(seen_by, provider):
    court = court_of()
    some = sorted(court.states)[:seen_by]
    checked = opened(VERIFIER)
    court.shows = {VERIFIER.public: lambda oracle, times: checked if oracle in some else None}
    found = tried(court, provider=provider)
    assert found.outcome == ("pass" if provider is HONEST else "fail")
    assert found.price_msat == (PRICE_MSAT if provider is HONEST else 0)


def test_a_cheating_provider_is_convicted_and_its_verifier_agreed():
    court = court_of()
    found = tried(court, provider=CHEATING)
    assert (found.outcome, found.culprit, found.verifiers) == ("fail", PROVIDER.public, ((VERIFIER.public, True),))
    assert all(court.convicted[oracle] == {PROVIDER.public} for oracle in court.honest)


def test_a_lying_verifier_is_convicted_and_the_work_passes():
    found = tried(court_of(), verifier=CHEATING)
    assert (found.outcome, found.culprit, found.verifiers) == ("pass", VERIFIER.public, ((VERIFIER.public, False),))


def test_a_verifier_whose_result_is_in_doubt_is_settled_by_the_oracles():
    court = court_of()
    found = tried(court, verifier=GREY)
    assert (found.outcome, found.culprit) == ("pass", "")
    assert set(court.recomputed) == set(court.honest)


@pytest.mark.parametrize(
    ("verifier", "verifiers"),
    [(HONEST, ((VERIFIER.public, True),)), (CHEATING, ((VERIFIER.public, False),)), (None, ())],
    ids=["who did its part", "who lied", "without"],
)
def test_a_provider_in_doubt_convicts_nobody_and_its_verifier_is_paid_for_its_part(verifier, verifiers):
    court = court_of()
    found = tried(court, provider=GREY, verifier=verifier, until=12)
    assert (found.outcome, found.culprit, found.verifiers) == ("unsure", "", verifiers)
    assert found.is_in_doubt == bool(verifiers)
    assert not any(court.convicted.values())


def test_oracles_without_a_worker_join_those_that_found_work_in_doubt():
    document, seats = committee()
    court = Courtroom(document, seats, without_worker=frozenset(s.keys.public for s in seats[:2]))
    assert tried(court, provider=GREY, until=12).verifiers == ((VERIFIER.public, True),)


def test_who_is_in_doubt_joins_others_that_are_not():
    court = court_of()
    clear = set(sorted(court.states)[:2])
    court.computes = lambda oracle: leaves(GREY) if oracle in clear else leaves()
    found = tried(court, provider=GREY, until=12)
    assert (found.outcome, found.verifiers) == ("pass", ((VERIFIER.public, True),))


@pytest.mark.parametrize("garbage", [None, opened(PROVIDER, CHEATING), opened(PROVIDER, request=digest("other"))])
def test_a_provider_that_is_silent_or_shows_something_else_has_withheld(garbage):
    court = court_of(shows={PROVIDER.public: always(garbage)})
    found = tried(court)
    assert (found.outcome, found.culprit) == ("withheld", "")
    assert not any(court.convicted.values())


def test_withheld_is_not_said_before_the_deadline():
    court = court_of(shows={PROVIDER.public: always(None)})
    assert tried(court, until=OPEN_EPOCHS + 1) is None
    assert not court.stored or all(e.kind == verification.KIND for e in court.stored)


def test_a_provider_that_answers_late_has_not_withheld():
    theirs = opened(PROVIDER)
    court = court_of(shows={PROVIDER.public: lambda oracle, times: theirs if times > 4 else None})
    assert tried(court).outcome == "pass"


def test_a_verifier_that_shows_nothing_is_replaced_by_the_oracles_and_not_paid():
    court = court_of(shows={VERIFIER.public: always(None)})
    found = tried(court, provider=CHEATING)
    assert (found.outcome, found.culprit, found.verifiers) == ("fail", PROVIDER.public, ((VERIFIER.public, False),))
    court = court_of(shows={VERIFIER.public: always(opened(VERIFIER, CHEATING))})  # not what it committed to
    found = tried(court)
    assert (found.outcome, found.culprit, found.verifiers) == ("pass", "", ((VERIFIER.public, False),))


def test_a_verifier_that_copied_the_providers_root_might_as_well_have_none():
    court, theirs = court_of(), opened(PROVIDER, CHEATING)
    court.shows = {PROVIDER.public: always(theirs), VERIFIER.public: always(theirs)}
    court.run_epochs(1)
    court.draw(0, [sample_of(theirs.root())])
    for epoch in range(1, 10):
        court.run_epochs(1)
        court.draw(epoch, roots=[(VERIFIER, theirs)] if epoch == 1 else ())
    found = court.verdict()
    assert (found.outcome, found.culprit, found.verifiers) == ("fail", PROVIDER.public, ())


def test_the_first_certified_root_of_a_verifier_decides():
    court, theirs = court_of(), opened(PROVIDER)
    second = opened(SECOND)
    court.shows = {PROVIDER.public: always(theirs), SECOND.public: always(second)}
    court.run_epochs(1)
    court.draw(0, [sample_of(theirs.root())])
    for epoch in range(1, 10):
        court.run_epochs(1)
        court.draw(epoch, roots={3: [(SECOND, second)], 4: [(VERIFIER, opened(VERIFIER, CHEATING))]}.get(epoch, ()))
    assert court.verdict().verifiers == ((SECOND.public, True),)


def test_a_strangers_root_counts_for_nothing():
    court, theirs, stranger = court_of(), opened(PROVIDER), keys("stranger")
    court.shows = {PROVIDER.public: always(theirs), stranger.public: always(opened(stranger, CHEATING))}
    court.run_epochs(1)
    court.draw(0, [sample_of(theirs.root())])
    for epoch in range(1, 10):
        court.run_epochs(1)
        court.draw(epoch, roots=[(stranger, opened(stranger, CHEATING))])
    assert (court.verdict().outcome, court.verdict().verifiers) == ("pass", ())
    assert not [asked for asked in court.asked if asked[1] == stranger.public]


@pytest.mark.parametrize("epoch", [0, VERIFIED_EPOCHS + 1])
def test_a_verifiers_root_of_the_draws_own_epoch_or_too_late_does_not_count(epoch):
    court = court_of()
    found = tried(court, verifier=CHEATING, verifier_epoch=epoch)
    assert (found.outcome, found.verifiers) == ("pass", ())


def test_without_verifiers_the_oracles_compute_at_once():
    court, theirs = court_of(), opened(PROVIDER, CHEATING)
    court.shows = {PROVIDER.public: always(theirs)}
    court.run_epochs(1)
    court.draw(0, [sample_of(theirs.root(), verifiers=())])
    court.run_epochs(2)
    found = court.verdict()
    assert (found.outcome, found.verifiers) == ("fail", ())


def test_inputs_that_are_not_to_be_had_leave_the_sample_unsure():
    court = court_of(computes=lambda oracle: None)
    assert tried(court, provider=CHEATING).outcome == "unsure"


def test_a_provider_that_shows_its_opening_but_not_its_inputs_has_withheld():
    court = court_of(computes=lambda oracle: Withheld("inputs", "refused"))
    found = tried(court, provider=CHEATING, verifier=None)
    assert (found.outcome, found.culprit) == ("withheld", "")


def test_a_provider_that_was_slow_once_and_then_shows_its_inputs_has_not_withheld():
    """The oracle itself is too slow for them, which is nobody else's fault."""
    tries: Counter[str] = Counter()

    class Slow(Courtroom):
        def _do(self, seat, action):
            if isinstance(action, Recompute):
                tries[seat.keys.public] += 1
                if tries[seat.keys.public] > 1:
                    self._later(50, seat.keys.public, InputsDisclosure(action.sample.key))
                    self._later(60, seat.keys.public, RecomputeResult(action.sample.key, None))
                    return
            super()._do(seat, action)

    court = Slow(*committee(), computes=lambda oracle: Withheld("inputs", "not shown in time"))
    found = tried(court, provider=HONEST, verifier=None)
    assert min(tries.values()) > 1
    assert (found.outcome, found.culprit) == ("unsure", "")


LIAR = keys("upstream").public
LIE = Equivocation(LIAR, "hidden.0", 1)


def test_a_producer_that_equivocated_is_convicted_and_nobody_who_worked_on_it():
    court = court_of(computes=lambda oracle: LIE)
    found = tried(court, provider=CHEATING)
    assert (found.outcome, found.culprit, found.equivocated) == ("unsure", LIAR, ("hidden.0", 1))
    assert found.verifiers == ()
    assert all(court.convicted[oracle] == {LIAR} for oracle in court.honest)
    assert not court.accused()


def test_who_equivocates_to_some_oracles_only_does_not_escape():
    """It shows two what it committed to, and to the others nothing; in the end they would do without."""
    document, seats = committee()
    lasts = []

    class Half(Courtroom):
        def _do(self, seat, action):
            if isinstance(action, Recompute):
                lasts.append((seat.keys.public, action.last))
            super()._do(seat, action)

    seen = {seats[0].keys.public, seats[2].keys.public}

    def computed(oracle):
        if oracle in seen:
            return LIE
        return leaves(CHEATING) if (oracle, True) in lasts else None

    court = Half(document, seats, computes=computed)
    found = tried(court, provider=CHEATING, verifier=None)
    assert (found.culprit, found.equivocated) == (LIAR, ("hidden.0", 1))
    assert not any(last for _, last in lasts)  # they joined before it came to that


def test_what_a_producer_signed_counts_in_the_end_if_it_shows_nobody_what_it_committed_to():
    document, seats = committee()
    asked = {}

    class Patient(Courtroom):
        def _do(self, seat, action):
            if isinstance(action, Recompute):
                asked.setdefault(seat.keys.public, []).append(action.last)
            super()._do(seat, action)

    court = Patient(document, seats)
    court.computes = lambda oracle: leaves() if asked[oracle][-1] else None
    found = tried(court, verifier=CHEATING)
    assert (found.outcome, found.culprit) == ("pass", VERIFIER.public)
    assert all(tries[0] is False and tries[-1] is True for tries in asked.values())


def test_oracles_without_a_worker_join_those_that_have_one():
    document, seats = committee()
    half = frozenset(s.keys.public for s in seats[:2])
    court = Courtroom(document, seats, without_worker=half)
    found = tried(court, provider=CHEATING)
    assert found.outcome == "fail"
    assert set(court.recomputed) == set(court.states) - half
    court = Courtroom(document, seats, without_worker=frozenset(s.keys.public for s in seats))
    assert tried(court, provider=CHEATING).outcome == "unsure"


def test_a_provider_that_shows_its_work_to_some_oracles_only_does_not_escape():
    document, seats = committee()
    theirs, shown = opened(PROVIDER, CHEATING), {seats[0].keys.public, seats[2].keys.public}
    court = Courtroom(document, seats, faults={seats[3].keys.public: silent})
    court.shows = {PROVIDER.public: lambda oracle, times: theirs if oracle in shown else None}
    assert tried(court, provider=CHEATING, until=11).outcome == "fail"


# ---- oracles that lie ---------------------------------------------------------------------------------------------


def silent(court, seat, action, outgoing):
    return []


def lying(court, seat, action, outgoing):
    """Votes against whatever it found."""
    if isinstance(action, SayVote) and action.verdict is not None:
        wrong = "unsure" if action.verdict.outcome in ("pass", "fail") else "pass"
        other = action.verdict.model_copy(update={"outcome": wrong, "culprit": "", "verifiers": ()})
        return [(verdict.build_vote(seat.keys, other, created_at=1), None)]
    return outgoing


def two_faced(court, seat, action, outgoing):
    """Tells half of the others one verdict and half another."""
    if isinstance(action, SayVote) and action.verdict is not None:
        other = action.verdict.model_copy(update={"outcome": "withheld", "culprit": "", "verifiers": ()})
        half = set(list(court.states)[: len(court.states) // 2])
        lie = verdict.build_vote(seat.keys, other, created_at=1)
        return [(event, half) for event, _ in outgoing] + [(lie, set(court.states) - half)]
    return outgoing


@pytest.mark.parametrize("fault", [silent, lying, two_faced])
@pytest.mark.parametrize(("provider", "outcome"), [(HONEST, "pass"), (CHEATING, "fail")])
def test_one_faulty_oracle_of_four_changes_no_verdict(fault, provider, outcome):
    court = court_of(faulty={0: fault})
    assert tried(court, provider=provider, until=12).outcome == outcome


def test_contradicting_votes_are_proven():
    court = court_of(faulty={1: two_faced})
    tried(court)  # whoever publishes the certificate shows the other vote to those who heard the lie
    culprit = next(iter(court.faults))
    one = next(e for e in court.stored if e.kind == oracle_round.KIND and e.pubkey == culprit)
    for event in [e for e in court.stored if e.pubkey == culprit and e.kind == oracle_round.KIND]:
        court.publish(event)
    court.run_epochs(1)
    assert one.pubkey in court.accused() == {culprit}


@pytest.mark.parametrize("seed", range(25))
def test_never_two_verdicts_on_one_sample(seed):
    fault = [silent, lying, two_faced][seed % 3]
    court = court_of(seed=seed, faulty={seed % 4: fault}, loss_percent=20, delay_ms=(1, 2_500))
    theirs = opened(PROVIDER, [HONEST, GREY, CHEATING][seed // 3 % 3])
    court.shows[PROVIDER.public] = lambda oracle, times: theirs if court.random.random() < 0.5 else None
    checked = opened(VERIFIER, CHEATING if seed % 5 == 0 else HONEST)
    court.shows[VERIFIER.public] = lambda oracle, times: checked if court.random.random() < 0.5 else None
    court.computes = lambda oracle: leaves() if court.random.random() < 0.7 else None
    court.run_epochs(1)
    court.draw(0, [sample_of(theirs.root())])
    for epoch in range(1, 12):
        court.run_epochs(1)
        court.draw(epoch, roots=[(VERIFIER, checked)] if epoch == 1 + seed % 3 else ())
        if epoch == 2 + seed % 5:
            court.restart(court.honest[seed % len(court.honest)])
    assert all(len(digests) == 1 for digests in court.verdicts().values())
    assert court.accused() <= set(court.faults)


# ---- what is published --------------------------------------------------------------------------------------------


def test_the_leader_publishes_what_was_drawn_and_nobody_else():
    court, theirs = court_of(), opened(PROVIDER)
    court.run_epochs(1)
    court.draw(0, [sample_of(theirs.root())])
    court.run_epochs(2)
    events = [event for event in court.stored if event.kind == verification.KIND]
    assert [event.pubkey for event in events] == [court.committee.leader(0)]
    assert verification.parse(events[0]).samples == (sample_of(theirs.root()),)


def test_for_a_silent_leader_the_others_publish_whatever_a_stranger_says():
    court, theirs = court_of(faulty={0: silent}), opened(PROVIDER)
    assert court.committee.leader(0) in court.faults
    sample = sample_of(theirs.root())
    forged = verification.JobSamples(
        committee=court.committee.digest(),
        epoch=0,
        certificate=digest("body/0"),
        request=sample.request,
        samples=(sample.model_copy(update={"verifiers": (keys("friend").public,)}),),
    )
    court.run_epochs(1)
    court.draw(0, [sample])
    court.publish(verification.build(keys("stranger"), forged, created_at=1))
    court.run_epochs(2)
    honest = [e for e in court.stored if e.kind == verification.KIND and e.pubkey in court.honest]
    assert honest
    assert all(verification.parse(event).samples == (sample,) for event in honest)


def test_a_restarted_oracle_votes_as_it_did():
    court = court_of()
    tried(court, provider=CHEATING, until=4)
    me = court.honest[0]
    before = [e for e in court.stored if e.kind == oracle_round.KIND and e.pubkey == me]
    court.restart(me)
    court.shows[PROVIDER.public] = always(None)  # it would now find something else
    theirs = opened(PROVIDER, CHEATING)
    court.draw(0, [sample_of(theirs.root())])
    for epoch in range(4, 12):
        court.run_epochs(1)
        court.draw(epoch)
    ((topic, x),) = ((e.tag("n"), e.tag("x")) for e in before)
    after = [e for e in court.stored if e.kind == oracle_round.KIND and e.pubkey == me and e.tag("n") == topic]
    assert [e.tag("x") for e in after] == [x, x]
    assert not court.accused()


# ---- bounds -------------------------------------------------------------------------------------------------------


def test_votes_on_unknown_samples_are_bounded_and_swept():
    document, seats = committee()
    state = start(document, seats[0].keys.public, can_recompute=True, now_ms=document.close_ms(0))
    outsider = keys("outsider")
    for i in range(3):
        for who in (seats[1].keys, outsider):
            topic = verdict.topic(digest(f"nothing/{i}"))
            vote = oracle_round.build_vote(who, document.digest(), topic, digest("x"), created_at=1)
            state, actions = verdict_rules.apply(VoteCame(vote), state)
            assert not actions
    assert len(state.votes) == 3
    assert all(list(votes) == [seats[1].keys.public] for votes in state.votes.values())
    full = replace(state, votes={f"{i:064x}": next(iter(state.votes.values())) for i in range(MAX_EARLY)})
    vote = oracle_round.build_vote(
        seats[1].keys, document.digest(), verdict.topic(digest("more")), "ab" * 32, created_at=1
    )
    assert verdict_rules.apply(VoteCame(vote), full)[0].votes == full.votes
    state, _ = verdict_rules.apply(Tick(document.close_ms(20)), state)
    assert not state.votes
    assert not state.heard


def test_samples_are_forgotten():
    court = court_of()
    tried(court)
    court.run_epochs(KEPT_EPOCHS + 1)
    for state in court.states.values():
        assert not state.cases
        assert not state.votes
        assert not state.drawn_ms
        assert not state.to_publish


def test_the_noise_of_these_tests_means_what_it_says():
    from nodewire.protocol.verification.comparison import compare

    for noise, outcome in ((HONEST, "pass"), (GREY, "grey"), (CHEATING, "fail")):
        assert compare(MANIFEST, "stage.0", opened(VERIFIER), opened(PROVIDER, noise)).outcome == outcome


NEIGHBOUR = keys("neighbour")


@pytest.mark.parametrize("shown_to", [0, 1, 3])
def test_what_an_inputs_producer_committed_to_it_must_open_though_it_was_not_drawn(shown_to):
    """Without it the sample stays unsure, and who hides it has withheld; nobody else is harmed."""
    court = court_of(faulty={3: lambda court, seat, action, outgoing: []})
    theirs = opened(NEIGHBOUR)
    owed = sample_of(theirs.root(), ()).model_copy(update={"provider": NEIGHBOUR.public})
    some = sorted(court.honest)[:shown_to]
    mine = opened(PROVIDER)
    court.shows = {
        PROVIDER.public: always(mine),
        NEIGHBOUR.public: lambda oracle, times: theirs if oracle in some else None,
    }
    computes = court.computes
    court.computes = lambda oracle: computes(oracle) if oracle in some else owed
    court.run_epochs(1)
    court.draw(0, [sample_of(mine.root(), verifiers=())])
    for epoch in range(1, 13):
        court.run_epochs(1)
        court.draw(epoch)
    found = {one.verdict.provider: one.verdict.outcome for one in court.certificates()}
    assert all(not convicted for convicted in court.convicted.values())
    assert (
        found
        == {
            0: {PROVIDER.public: "unsure", NEIGHBOUR.public: "withheld"},
            1: {PROVIDER.public: "unsure", NEIGHBOUR.public: "withheld"},
            3: {PROVIDER.public: "pass"},
        }[shown_to]
    )


def test_an_epoch_that_is_read_late_is_judged_and_later_ones_are_heard_again():
    """One oracle reads the draw three epochs late, and the verifier's roots with it: it finds what the others find."""
    court, theirs, first, second = court_of(), opened(PROVIDER, CHEATING), opened(VERIFIER), opened(SECOND)
    court.shows = {who.public: always(one) for who, one in ((PROVIDER, theirs), (VERIFIER, first), (SECOND, second))}
    late, *others = court.honest
    body = {"manifests": {sample_of(theirs.root()).request: MANIFEST}, "certificate": digest("body")}
    drawn = EpochDraw(0, samples=(sample_of(theirs.root()),), roots={}, **body)
    roots = [
        {(one.author, one.request, one.task, one.chunk, one.attempt): one.root()} for one in (second, first)
    ]  # the first drawn comes second
    later = [EpochDraw(n, samples=(), roots=roots[n - 1] if n < 3 else {}, **body) for n in range(1, 4)]
    court.run_epochs(1)
    for number, one in enumerate((drawn, *later)):
        for oracle in others:
            court.feed(oracle, one)
        if number:
            court.feed(late, one)
        if number == 1:  # who heard nothing of it yet needs nobody's votes
            assert not court.states[late].cases
        court.run_epochs(1)
    for one in (drawn, *later):
        court.feed(late, one)
    assert court.states[late].cases[drawn.samples[0].key].verifier[0] == SECOND.public
    court.run_epochs(3)
    assert (court.verdict().outcome, court.verdict().verifiers) == ("fail", ((SECOND.public, True),))
    mine = [e for e in court.stored if e.kind == oracle_round.KIND and e.pubkey == late]
    assert {e.tag("x") for e in mine} == {court.verdict().digest()}


def test_what_an_earlier_epoch_held_first_is_judged_as_its_sample():
    """The later epoch was read first, and seemed to hold the root for the first time."""
    document, seats = committee()
    sample = sample_of(opened(PROVIDER).root())
    body = {"manifests": {sample.request: MANIFEST}, "certificate": digest("body"), "roots": {}}
    state = start(document, seats[0].keys.public, can_recompute=True, now_ms=document.close_ms(3))
    for epoch in (3, 1, 3):
        state, _ = verdict_rules.apply(EpochDraw(epoch, samples=(sample,), **body), state)
    assert state.cases[sample.key].epoch == 1
    assert state.read == 3


# ---- each bound by itself -----------------------------------------------------------------------------------------


DOCUMENT, SEATS = committee()
BODY = {"manifests": {digest("request"): MANIFEST}, "certificate": digest("body"), "roots": {}}


def judge_of(epoch, seat=SEATS[0]):
    """An oracle shortly after an epoch has begun."""
    return start(DOCUMENT, seat.keys.public, can_recompute=True, now_ms=DOCUMENT.close_ms(epoch - 1))


def told(state, *inputs):
    actions = []
    for what in inputs:
        state, more = verdict_rules.apply(what, state)
        actions += more
    return state, actions


def vote_by(seat, ballot, x):
    return VoteCame(oracle_round.build_vote(seat.keys, DOCUMENT.digest(), verdict.topic(ballot), x, created_at=1))


def test_a_verdict_without_a_quorum_closes_no_case_and_convicts_nobody():
    sample = sample_of(opened(PROVIDER).root())
    place = {name: getattr(sample, name) for name in ("request", "task", "chunk", "attempt", "provider", "root")}
    fail = verdict.Verdict(committee=DOCUMENT.digest(), epoch=1, outcome="fail", culprit=PROVIDER.public, **place)

    def came(voters):
        votes = tuple(verdict.build_vote(seat.keys, fail, created_at=1) for seat in voters)
        certificate = verdict.Certificate(fail, votes)
        return told(judge_of(2), EpochDraw(1, samples=(sample,), **BODY), VerdictCame(certificate))[0]

    for voters, is_done in ((SEATS[:2], False), (SEATS[:3], True)):
        state = came(voters)
        assert (state.cases[sample.key].done is not None) == is_done
        assert bool(state.convicted) == is_done


def test_votes_on_what_is_no_case_here_are_joined_two_epochs_after_the_first():
    key, x = digest("unknown"), digest("x")
    state, _ = told(judge_of(5), vote_by(SEATS[1], key, x))
    state, actions = told(state, Tick(DOCUMENT.close_ms(5)), vote_by(SEATS[2], key, x))
    assert not actions  # a vote that comes later does not begin the time anew
    state, actions = told(state, Tick(DOCUMENT.close_ms(6)))
    assert [(one.key, one.x) for one in actions if isinstance(one, SayVote)] == [(key, x)]
    both, _ = told(judge_of(5), vote_by(SEATS[1], key, x), vote_by(SEATS[2], key, x))
    assert not told(both, Tick(DOCUMENT.close_ms(5)))[1]
    alone, _ = told(judge_of(5), vote_by(SEATS[1], key, x))
    assert not told(alone, Tick(DOCUMENT.close_ms(6)))[1]


def test_the_second_ballot_follows_f_plus_one_first_votes_and_no_fewer():
    sample = sample_of(opened(PROVIDER).root())

    def second(voters):
        state, _ = told(judge_of(2), EpochDraw(1, samples=(sample,), **BODY))
        case = replace(state.cases[sample.key], said=True)
        state, _ = told(state.with_case(case), *(vote_by(seat, sample.key, digest("theirs")) for seat in voters))
        state, early = told(state, Tick(DOCUMENT.close_ms(9) - 1))
        state, actions = told(state, Tick(DOCUMENT.close_ms(9)))
        assert not [one for one in early if isinstance(one, SayVote)]
        (said,) = [one for one in actions if isinstance(one, SayVote)]
        return said

    assert second(SEATS[1:3]).x == digest("theirs")
    assert second(SEATS[1:2]).verdict.outcome == "unsure"


def test_of_one_epoch_so_many_samples_are_judged():
    roots = [digest(f"root {n}") for n in range(MAX_DRAWN + 2)]
    samples = [sample_of(root, (), digest(f"request {n}")) for n, root in enumerate(roots)]
    body = BODY | {"manifests": {one.request: MANIFEST for one in samples}}
    state, _ = told(judge_of(2), EpochDraw(1, samples=tuple(samples), **body))
    assert set(state.cases) == {one.key for one in samples[:MAX_DRAWN]}


@pytest.mark.parametrize(("epoch", "is_published"), [(OPEN_EPOCHS + 1, True), (OPEN_EPOCHS + 2, False)])
def test_what_was_drawn_too_long_ago_is_not_published(epoch, is_published):
    leader = next(seat for seat in SEATS if seat.keys.public == DOCUMENT.leader(1))
    sample = sample_of(opened(PROVIDER).root())
    _, actions = told(judge_of(epoch, leader), EpochDraw(1, samples=(sample,), **BODY))
    assert any(isinstance(one, PublishSamples) for one in actions) == is_published


def test_so_many_others_are_asked_whose_root_it_is():
    sample = sample_of(opened(PROVIDER).root())
    roots = {(keys(f"copier {n}").public, *(sample.request, TASK, 1, 0)): sample.root for n in range(12)}
    state, _ = told(
        judge_of(3), EpochDraw(1, samples=(sample,), **BODY), EpochDraw(2, samples=(), **(BODY | {"roots": roots}))
    )
    assert len(state.cases[sample.key].others) == 8


def test_what_must_only_be_opened_counts_nothing_in_its_producers_account():
    sample = sample_of(opened(PROVIDER).root())
    owed = sample.model_copy(update={"provider": SECOND.public})
    parties = {sample.key: Parties(True, "customer", frozenset({"192.0.2.1"}), PRICE_MSAT)}
    state, _ = told(judge_of(2), EpochDraw(1, samples=(sample,), parties=parties, **BODY))
    state, _ = told(state, RecomputeResult(sample.key, None, unopened=owed))
    assert state.cases[owed.key].parties == Parties(True, "customer")


def test_a_verifier_that_shows_nothing_keeps_its_place_until_others_have_had_time_to_see_it():
    court, theirs, first, second = court_of(), opened(PROVIDER), opened(VERIFIER), opened(SECOND)
    court.shows = {PROVIDER.public: always(theirs), SECOND.public: always(second)}
    sample = sample_of(theirs.root())
    court.run_epochs(1)
    court.draw(0, [sample])
    for epoch in range(1, 9):
        court.run_epochs(1)
        court.draw(epoch, roots=[(VERIFIER, first), (SECOND, second)] if epoch == 1 else ())
        if epoch == 3:
            assert not any(state.cases[sample.key].silent for state in court.states.values())
    assert court.verdict().verifiers == ((SECOND.public, True),)
