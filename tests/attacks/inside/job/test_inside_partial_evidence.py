"""One provider and one oracle: showing evidence to some honest oracles only, so that no verdict is ever reached."""

from __future__ import annotations

import pytest

from nodewire.errors import BadQuorum
from nodewire.oracle.court.case import SayVote, VoteCame
from nodewire.protocol.committee import oracle_round
from nodewire.protocol.verification.verdict import Certificate, build_vote, topic
from nodewire.protocol.verification.verdict import second as ballot_after
from tests.oracle.court.test_verdict_rules import CHEATING, HONEST, court_of, tried
from tests.oracle.courtroom import PROVIDER, SECOND, VERIFIER, always, opened, sample_of

SILENT = {3: lambda court, seat, action, outgoing: []}
"""The fourth oracle says nothing at all: three votes of the honest three are needed."""
UNTIL = 14


def shown_to(court, opening, oracles):
    honest = sorted(court.honest)
    return lambda oracle, times: opening if oracle in honest[:oracles] else None


@pytest.mark.parametrize("oracles", [1, 2])
def test_a_cheater_that_opens_to_some_honest_oracles_does_not_escape(oracles):
    court = court_of(faulty=SILENT)
    court.shows[PROVIDER.public] = shown_to(court, opened(PROVIDER, CHEATING), oracles)
    found = tried(court, provider=CHEATING, verifier=HONEST, until=UNTIL)
    assert found is not None
    assert found.outcome in ("fail", "withheld")


@pytest.mark.parametrize("oracles", [1, 2])
@pytest.mark.parametrize(("provider", "outcome"), [(CHEATING, "fail"), (HONEST, "pass")])
def test_a_verifier_that_opens_to_some_honest_oracles_saves_nobody(oracles, provider, outcome):
    court = court_of(faulty=SILENT)
    court.shows[VERIFIER.public] = shown_to(court, opened(VERIFIER, provider), oracles)
    found = tried(court, provider=provider, verifier=provider, until=UNTIL, audited=True)
    assert found is not None
    assert (found.outcome, found.culprit) == (outcome, PROVIDER.public if outcome == "fail" else "")


def test_three_honest_oracles_that_each_see_something_else_do_not_let_a_cheater_go():
    """One saw provider and verifier, one the provider alone, one nothing: fail with an accomplice, fail, withheld."""
    court = court_of(faulty=SILENT)
    court.shows[PROVIDER.public] = shown_to(court, opened(PROVIDER, CHEATING), 2)
    court.shows[VERIFIER.public] = shown_to(court, opened(VERIFIER, CHEATING), 1)
    found = tried(court, provider=CHEATING, verifier=CHEATING, until=UNTIL, audited=True)
    assert found is not None
    assert found.outcome == "withheld"


def timed(when_epoch, outcome, to):
    """Keeps silent until an epoch begins, then votes `outcome` in the first ballot and tells `to` of the honest."""

    def fault(court, seat, action, outgoing):
        if isinstance(action, SayVote) and action.verdict is not None and not hasattr(court, "timed"):
            court.timed = True
            said = action.verdict.model_copy(
                update={"outcome": outcome, "culprit": "", "verifiers": (), "accomplices": (), "equivocated": None}
            )
            if outcome == "fail":
                said = said.model_copy(update={"culprit": PROVIDER.public})
            vote = build_vote(seat.keys, said, created_at=1)
            at_ms = court.committee.close_ms(when_epoch - 1)
            for oracle in sorted(court.honest)[:to]:
                court._later(at_ms - court.now_ms, oracle, VoteCame(vote))
        return []

    return fault


@pytest.mark.parametrize("outcome", ["fail", "pass", "unsure", "withheld"])
@pytest.mark.parametrize("to", [1, 2, 3])
@pytest.mark.parametrize("epoch", [8, 9])
def test_an_oracle_that_times_its_vote_for_some_cannot_split_the_second_ballot(outcome, to, epoch):
    court = court_of(faulty={3: timed(epoch, outcome, to)})
    court.shows[PROVIDER.public] = shown_to(court, opened(PROVIDER, CHEATING), 1)
    found = tried(court, provider=CHEATING, verifier=None, until=UNTIL)
    assert found is not None
    assert found.outcome in ("fail", "withheld")


@pytest.mark.parametrize("lie", ["withheld", "fail"])
def test_an_honest_provider_that_one_honest_oracle_cannot_reach_passes_whatever_the_fourth_says(lie):
    """Its wire is flooded so that one oracle never gets through, and the oracle in hand says that it did not either."""

    def liar(court, seat, action, outgoing):
        if isinstance(action, SayVote) and action.verdict is not None:
            said = action.verdict.model_copy(update={"outcome": lie, "verifiers": ()})
            if lie == "fail":
                said = said.model_copy(update={"culprit": PROVIDER.public})
            return [(build_vote(seat.keys, said, created_at=1), None)]
        return outgoing

    court = court_of(faulty={3: liar})
    court.shows[PROVIDER.public] = shown_to(court, opened(PROVIDER, HONEST), 2)
    found = tried(court, until=UNTIL)
    assert found is not None
    assert (found.outcome, found.culprit) == ("pass", "")


@pytest.mark.parametrize("oracles", [0, 1, 2])
@pytest.mark.parametrize(("provider", "outcome"), [(CHEATING, "fail"), (HONEST, "pass")])
def test_a_verifier_that_commits_first_and_opens_to_hardly_anybody_takes_no_pay_from_one_that_worked(
    oracles, provider, outcome
):
    """Drawn second, it commits to anything at once; who was drawn first computes, commits a little later, and opens."""
    garbage, honest, theirs = opened(SECOND, 2 * CHEATING), opened(VERIFIER), opened(PROVIDER, provider)
    court = court_of(faulty=SILENT)
    court.shows = {
        PROVIDER.public: always(theirs),
        VERIFIER.public: always(honest),
        SECOND.public: shown_to(court, garbage, oracles),
    }
    court.run_epochs(1)
    court.draw(0, [sample_of(theirs.root())])
    for epoch in range(1, UNTIL):
        court.run_epochs(1)
        court.draw(epoch, roots={1: [(SECOND, garbage)], 2: [(VERIFIER, honest)]}.get(epoch, []))
    found = court.verdict()
    assert found is not None
    assert found.outcome == outcome
    if oracles < 2:
        assert found.verifiers == ((VERIFIER.public, True),)
    else:
        assert SECOND.public in found.convicted


def test_a_vote_of_the_second_ballot_does_not_make_up_the_first_ones_quorum():
    court = court_of()
    found = tried(court)
    one = Certificate(found, tuple(build_vote(seat.keys, found, created_at=1) for seat in court.seats[:2]))
    second = oracle_round.build_vote(
        court.seats[2].keys, found.committee, topic(ballot_after(found.key)), found.digest(), created_at=1
    )
    with pytest.raises(BadQuorum):
        Certificate(found, (*one.votes, second)).check(court.committee)
    with pytest.raises(BadQuorum):
        one.check(court.committee)
