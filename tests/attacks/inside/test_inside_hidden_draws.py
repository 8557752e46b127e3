"""One oracle and a drawn verifier: telling oracles what was drawn, but not the honest verifiers, or them what was not.

Whoever of the drawn commits first decides whose work a provider's is compared with: hide the draw from the others, and
it is always a friend. Honest verifiers work for the committee's word: invent draws, and they work for nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace

import pytest

from nodewire.errors import BadInput, NotAllowed
from nodewire.nostr import event as events
from nodewire.oracle.case import Drawn
from nodewire.oracle.court import Court
from nodewire.protocol import commitment, job, verification
from nodewire.protocol.commitment import ChunkRoot, Commitment
from nodewire.protocol.manifest import Manifest
from nodewire.protocol.verification import Sampled
from nodewire.provider.verifying import Verifying
from tests.oracle.courtroom import MANIFEST, PROVIDER, TASK, VERIFIER, sample_of
from tests.oracle.test_oracle_docket import COMMITTEE, SEATS, body, request
from tests.protocol_committee.actors import GENESIS_S, digest, keys

EPOCH = 2
CLOSE_S = COMMITTEE.close_ms(EPOCH) // 1000
FAULTY, HONEST = SEATS[EPOCH % 4], SEATS[(EPOCH + 1) % 4]
SAMPLE = sample_of(digest("root"))
SAMPLED = Sampled(
    committee=COMMITTEE.digest(), epoch=EPOCH, certificate=digest("body"), request=SAMPLE.request, samples=(SAMPLE,)
)
TAGS = [list(tag) for tag in verification.build(FAULTY.keys, SAMPLED, created_at=CLOSE_S).tags]


def said(by=FAULTY.keys, created_at=CLOSE_S, tags=TAGS):
    return events.sign(by, verification.KIND, created_at=created_at, content=SAMPLED.to_json(), tags=tags)


def court():
    evidence = SimpleNamespace(can_recompute=True)
    nothing, market = SimpleNamespace(snapshots=dict), SimpleNamespace(committee=COMMITTEE)
    clock = SimpleNamespace(time_s=lambda: GENESIS_S + 0.0)
    made = Court(HONEST.keys, COMMITTEE, nothing, market, nothing, evidence, nothing, clock)
    made._feed(Drawn(EPOCH, digest("body"), (SAMPLE,), {SAMPLE.request: MANIFEST}, {}))
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


class Work:
    """What a verifier is asked to do; taking it up is all that counts here."""

    def __init__(self):
        self.taken = 0

    def take(self):
        self.taken += 1
        raise NotAllowed("test", "it would work now")

    manifest: Manifest = MANIFEST
    tasks = (TASK,)


class Stall:
    committee, committee_digest = COMMITTEE, COMMITTEE.digest()

    def __init__(self, *roots):
        self.roots = roots

    def epochs_after(self, epoch):
        return [SimpleNamespace(body=body(EPOCH), beacon=digest("beacon"), snapshot="")] if epoch < EPOCH else []

    async def commitments(self, _):
        if not self.roots:
            return ()
        said = Commitment(committee=COMMITTEE.digest(), epoch=EPOCH, chunks=self.roots)
        return (commitment.parse(commitment.build(PROVIDER, said, created_at=1)[0]),)


async def asked_to_verify(sample, asked, stall, monkeypatch):
    """How often the verifier took work up when one oracle published this sample."""
    monkeypatch.setattr("nodewire.provider.verifying.time.time", lambda: CLOSE_S + 1.0)
    sampled = SAMPLED.model_copy(update={"request": asked.id, "samples": (sample,)})
    event = verification.build(FAULTY.keys, sampled, created_at=CLOSE_S)

    async def subscribe(filters):
        yield event

    async def fetch(filters):
        return [asked]

    async def publish(event):
        pass

    work = Work()
    verifying = Verifying(
        keys=VERIFIER, market=stall, relays=SimpleNamespace(subscribe=subscribe, fetch=fetch), node=None, job_kinds={},
        served={job.parse(asked).plan.manifest: work}, workers={}, commit=lambda root: None, keep=lambda opening: None,
        publish=publish,
    )  # fmt: skip
    verifying._take(sample, EPOCH)
    await asyncio.gather(*verifying._running.values())
    return work.taken


async def test_a_verifier_works_on_what_the_beacon_drew_and_on_nothing_that_one_oracle_invents(monkeypatch):
    asked = request()
    root = ChunkRoot(request=asked.id, task=TASK, chunk=1, attempt=0, root=digest("root"))
    sample = SAMPLE.model_copy(update={"request": asked.id})
    assert await asked_to_verify(sample, asked, Stall(root), monkeypatch) == 1
    assert await asked_to_verify(sample, asked, Stall(), monkeypatch) == 0
    other = root.model_copy(update={"root": digest("not certified")})
    assert await asked_to_verify(sample, asked, Stall(other), monkeypatch) == 0
    monkeypatch.setattr("nodewire.provider.verifying.is_drawn", lambda *_: False)
    assert await asked_to_verify(sample, asked, Stall(root), monkeypatch) == 0
