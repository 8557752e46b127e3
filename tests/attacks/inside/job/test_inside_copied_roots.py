"""Any provider and one oracle: publishing an honest node's root before it is certified, so that it seems the copier.

A root is public before it counts: in the result (6843), and in a commitment of an epoch that found no quorum.
"""

from __future__ import annotations

import pytest

from nodewire.errors import BadInput
from nodewire.protocol.committee.commitment import ChunkRoot
from nodewire.protocol.job.chunk import Opening
from tests.oracle.court.test_oracle_docket import Stalls, read, request
from tests.oracle.court.test_verdict_rules import court_of
from tests.oracle.courtroom import PROVIDER, TASK, VERIFIER, always, opened, sample_of
from tests.protocol.committee.actors import keys

THIEF = keys("front-runner")


def copies(opening):
    """Where THIEF committed to the root an epoch before its author."""
    return sample_of(opening.root(), ()).model_copy(update={"provider": THIEF.public})


def judged(court, opening, *, provider=PROVIDER, first=THIEF, epochs=11):
    place = copies(opening).model_copy(update={"provider": first.public})
    checked = opened(VERIFIER)
    court.shows.setdefault(VERIFIER.public, always(checked))
    court.run_epochs(1)
    drawn = sample_of(opening.root()).model_copy(update={"provider": provider.public})
    court.draw(0, [drawn], others=[place])
    for epoch in range(1, epochs):
        court.run_epochs(1)
        court.draw(epoch, roots=[(VERIFIER, checked)] if epoch == 1 else [])
    return court.verdict()


async def test_oracles_notice_the_earlier_root_and_it_settles_nothing_yet():
    asked, mine = request(), opened(PROVIDER, request=request().id)
    root = ChunkRoot(request=asked.id, task=TASK, chunk=1, attempt=0, root=mine.root())
    _, second = await read(Stalls([asked], {1: [(THIEF, root)], 2: [(PROVIDER, root)]}), 1, 2)
    (sample,) = second.samples
    assert [one.provider for one in second.others[sample.key]] == [THIEF.public]


def test_an_honest_author_passes_whoever_published_its_root_before():
    mine = opened(PROVIDER)
    court = court_of(shows={PROVIDER.public: always(mine)})
    found = judged(court, mine)
    assert (found.outcome, found.culprit, found.verifiers) == ("pass", "", ((VERIFIER.public, True),))


@pytest.mark.parametrize("as_its_own", [True, False])
def test_an_author_that_is_offline_is_not_convicted_by_a_thief_to_whom_an_oracle_gave_its_opening(as_its_own):
    """An oracle in hand pulled it before; it is the author's all the same, and opens nobody else's root."""
    mine = opened(PROVIDER)
    stolen = mine.model_copy(update={"author": THIEF.public}) if as_its_own else mine
    court = court_of(shows={PROVIDER.public: always(None), THIEF.public: always(stolen)})
    found = judged(court, mine)
    assert (found.outcome, found.culprit) == ("withheld", "")
    assert all(not convicted for convicted in court.convicted.values())


@pytest.mark.parametrize("shown", [1, 2, 3])
def test_a_copier_is_convicted_when_the_author_opens_to_whatever_oracles_with_one_of_them_silent(shown):
    theirs = opened(PROVIDER)
    court = court_of(faulty={3: lambda court, seat, action, outgoing: []})
    honest = sorted(court.honest)
    court.shows = {PROVIDER.public: lambda oracle, times: theirs if oracle in honest[:shown] else None}
    found = judged(court, theirs, provider=THIEF, first=PROVIDER, epochs=14)
    assert found.outcome == ("withheld" if shown == 1 else "fail")
    assert found.provider == THIEF.public


@pytest.mark.parametrize("change", [{"author": THIEF.public}, {"task": "stage.1"}, {"chunk": 2}, {"attempt": 1}])
def test_a_root_opens_for_its_author_at_its_place_alone(change):
    mine = opened(PROVIDER)
    assert mine.model_copy(update=change).root() != mine.root()
    with pytest.raises(BadInput):
        Opening.from_document({name: value for name, value in mine.document().items() if name != "author"})
