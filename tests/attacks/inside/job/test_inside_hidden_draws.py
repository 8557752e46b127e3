"""One oracle and a drawn verifier: telling oracles what was drawn, but not the honest verifiers, or them what was not.

Whoever of the drawn commits first decides whose work a provider's is compared with: hide the draw from the others, and
it is always a friend. Honest verifiers work for the committee's word: invent draws, and they work for nothing; what
they make of such is in tests/provider/evidence/test_verifier.py.
"""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

import pytest

from nodewire.errors import BadInput
from nodewire.nostr import event as events
from nodewire.oracle.court.case import EpochDraw
from nodewire.oracle.court.court import Court
from nodewire.protocol.verification import sample
from nodewire.protocol.verification.sample import JobSamples
from tests.oracle.court.test_oracle_docket import COMMITTEE, SEATS
from tests.oracle.courtroom import MANIFEST, VERIFIER, sample_of
from tests.protocol.committee.actors import GENESIS_S, digest, keys

EPOCH = 2
CLOSE_S = COMMITTEE.close_ms(EPOCH) // 1000
FAULTY, HONEST = SEATS[EPOCH % 4], SEATS[(EPOCH + 1) % 4]
SAMPLE = sample_of(digest("root"))
SAMPLED = JobSamples(
    committee=COMMITTEE.digest(), epoch=EPOCH, certificate=digest("body"), request=SAMPLE.request, samples=(SAMPLE,)
)
TAGS = [list(tag) for tag in sample.build(FAULTY.keys, SAMPLED, created_at=CLOSE_S).tags]


def said(by=FAULTY.keys, created_at=CLOSE_S, tags=TAGS):
    return events.sign(by, sample.KIND, created_at=created_at, content=SAMPLED.to_json(), tags=tags)


def court():
    evidence = SimpleNamespace(can_recompute=True)
    nothing, market = SimpleNamespace(snapshots=dict), SimpleNamespace(committee=COMMITTEE)
    clock = SimpleNamespace(time_s=lambda: GENESIS_S + 0.0)
    made = Court(HONEST.keys, nothing, market, nothing, evidence, nothing, clock)
    made._feed(EpochDraw(EPOCH, digest("body"), (SAMPLE,), {SAMPLE.request: MANIFEST}, {}))
    assert made.state.to_publish  # it is not the leader, and waits whether that says it
    return made


def test_what_the_leader_publishes_as_it_must_is_not_published_again():
    one = court()
    one._came(said())
    assert not one.state.to_publish


@pytest.mark.parametrize(
    "event",
    [
        said(tags=[tag for tag in TAGS if tag[0] != "p"]),
        said(tags=[tag for tag in TAGS if tag != ["p", VERIFIER.public]]),
        said(tags=[tag if tag[0] != "e" else ["e", digest("another")] for tag in TAGS]),
        said(tags=[*TAGS, ["expiration", str(CLOSE_S + 1)]]),
        said(created_at=CLOSE_S - 100),
        said(by=keys("a second key of the leader's")),
    ],
    ids=[
        "no verifier named",
        "one not named",
        "another job named",
        "soon gone",
        "older than any verifier asks",
        "by a stranger",
    ],
)
def test_a_draw_that_honest_verifiers_cannot_find_is_published_again(event):
    one = court()
    with suppress(BadInput):
        one._came(event)
    assert one.state.to_publish
