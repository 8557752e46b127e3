"""Every root is committed to until a certificate holds it or its deadline is over, whatever crashes in between."""

import logging

import pytest

from nodewire.errors import TimedOut
from nodewire.market import Market
from nodewire.protocol.committee import commitment, oracle_round, quorum_certificate
from nodewire.protocol.committee.commitment import ChunkRoot
from nodewire.protocol.committee.epoch_body import Body
from nodewire.protocol.committee.oracle_round import Inventory
from nodewire.protocol.committee.quorum_certificate import Certificate
from nodewire.provider.evidence.committer import LATE_EPOCHS, SHOWN_EPOCHS, Committer
from nodewire.provider.evidence.store import KeptWork
from nodewire.store.blobs import Blobs
from tests.protocol.committee.actors import committee, digest, keys
from tests.provider.evidence.test_store import EVENT, TICKET

COMMITTEE, SEATS = committee(1)
PROVIDER = keys("provider")


def root(chunk, request="a job") -> ChunkRoot:
    return ChunkRoot(request=digest(request), task="driver", chunk=chunk, attempt=0, root=digest(f"root {chunk}"))


class Relays:
    """What was published, as all see it, and a committee that certifies when a test says so."""

    def __init__(self):
        self.events, self.own, self.answers = [], [], True

    async def publish(self, event, timeout_s):
        if not self.answers:
            raise TimedOut("relays", "none answered")
        self.own.append(commitment.parse(event))

    async def fetch(self, filters, timeout_s):
        if not self.answers:
            raise TimedOut("relays", "none answered")
        return [event for event in self.events if any(one.matches(event) for one in filters)]

    def certify(self, epoch, *committed):
        """The certificate of an epoch in which the oracles saw these commitments, among others'."""
        ids = tuple(sorted({one.id for one in committed} | {digest(f"another's {epoch}")}))
        listed = []
        for seat in SEATS[:3]:
            said = Inventory(committee=COMMITTEE.digest(), epoch=epoch, beats=(), commitments=ids)
            listed.append(oracle_round.build_inventory(seat.keys, said, created_at=1)[0])
        body = Body(
            committee=COMMITTEE.digest(),
            epoch=epoch,
            snapshot=digest("snapshot"),
            commitments=commitment.certified_root(list(ids)),
            inventories=tuple(sorted(event.id for event in listed)),
            previous=COMMITTEE.digest(),
        )
        votes = tuple(
            oracle_round.build_vote(s.keys, body.committee, f"epoch/{epoch}", body.digest(), created_at=1)
            for s in SEATS[:3]
        )
        found = quorum_certificate.build(SEATS[0].keys, Certificate(body, votes), created_at=1)
        self.events += [*listed, found]
        return found


@pytest.fixture
def relays():
    return Relays()


class Process:
    """A provider's process over the file `path`, as far as it commits."""

    def __init__(self, relays, path):
        self.relays, self.file = relays, KeptWork(path)
        blobs = Blobs(["http://127.0.0.1:9"], path.parent)
        self.market = Market(relays, blobs, COMMITTEE)
        self.committing = Committer(PROVIDER, relays, blobs, self.market, self.file)
        self.commit, self.turn = self.committing.commit, self.committing.turn

    async def sees(self, epoch, *committed):
        await self.market.add_event(self.relays.certify(epoch, *committed))


@pytest.fixture
def start(relays, tmp_path):
    """A new process over what the last one, which is not asked for anything any more, has left."""
    return lambda: Process(relays, tmp_path / "kept.db")


def published(relays):
    return [(one.epoch, [chunk.chunk for chunk in one.commitment.chunks]) for one in relays.own]


async def test_one_commitment_an_epoch_and_what_comes_later_goes_into_the_next(start, relays):
    process = start()
    await process.turn(5)
    assert published(relays) == []
    await process.commit([root(1), root(0)], 20)
    await process.turn(5)
    await process.commit([root(2)], 20)
    await process.turn(5)
    await process.turn(6)
    assert published(relays) == [(5, [0, 1]), (6, [2])]


async def test_what_a_certificate_holds_is_not_published_again(start, relays):
    process = start()
    await process.commit([root(0)], 20)
    await process.turn(5)
    await process.sees(5, *relays.own)
    for epoch in range(6, 30):
        await process.turn(epoch)
    assert published(relays) == [(5, [0])]
    assert process.file.undecided() == []


async def test_what_the_epochs_certificate_does_not_hold_is_published_again_at_once(start, relays):
    process = start()
    await process.commit([root(0)], 20)
    await process.turn(5)
    await process.turn(6)
    assert published(relays) == [(5, [0])]  # nobody knows yet
    await process.sees(5)
    await process.turn(6)
    await process.sees(6, relays.own[-1])
    await process.turn(7)
    assert published(relays) == [(5, [0]), (6, [0])]
    assert process.file.certified(root(0)) == 6


async def test_what_an_epoch_had_that_was_skipped_is_published_again(start, relays):
    process = start()
    await process.commit([root(0)], 20)
    await process.turn(5)
    for epoch in range(6, 5 + LATE_EPOCHS + 1):
        await process.turn(epoch)
    assert published(relays) == [(5, [0]), (5 + LATE_EPOCHS, [0])]


async def test_a_certificate_that_did_not_come_here_is_asked_for_before_anything_is_published_again(start, relays):
    process = start()
    await process.commit([root(0)], 20)
    await process.turn(5)
    relays.certify(5, *relays.own)
    await process.turn(5 + LATE_EPOCHS)
    assert published(relays) == [(5, [0])]
    assert process.file.certified(root(0)) == 5


async def test_without_its_inventories_a_certificate_says_nothing_and_the_root_is_published_again(start, relays):
    process = start()
    await process.commit([root(0)], 20)
    await process.turn(5)
    await process.sees(5, *relays.own)
    relays.events.clear()
    await process.turn(6)
    assert published(relays) == [(5, [0])]
    await process.turn(7)
    assert published(relays) == [(5, [0]), (7, [0])]


async def test_pending_roots_go_on_after_a_crash(start, relays):
    process = start()
    await process.commit([root(0)], 20)
    process = start()
    await process.turn(5)
    process = start()
    await process.sees(5)
    await process.turn(6)
    process = start()
    await process.sees(6, relays.own[-1])
    await process.turn(7)
    assert published(relays) == [(5, [0]), (6, [0])]
    assert process.file.certified(root(0)) == 6


async def test_a_crash_between_writing_and_publishing_makes_no_second_commitment(start, relays):
    """Oracles list the first that they see, which may be either."""
    process = start()
    await process.commit([root(0)], 20)
    relays.answers = False
    await process.turn(5)
    assert relays.own == []
    (_, id_) = process.file.undecided()[0]
    relays.answers = True
    process = start()
    await process.commit([root(1)], 20)
    await process.turn(5)
    assert [one.id for one in relays.own] == [id_]
    process = start()
    await process.turn(5)
    assert [one.id for one in relays.own] == [id_, id_]


async def test_while_no_relay_answers_nothing_is_decided(start, relays):
    process = start()
    await process.commit([root(0)], 8)
    await process.turn(5)
    relays.answers = False
    for epoch in range(6, 40):
        await process.turn(epoch)
    assert [epoch for epoch, _ in process.file.undecided()] == [5, 8]
    relays.answers = True
    relays.certify(5, *relays.own)
    await process.turn(40)
    assert process.file.undecided() == []
    assert len(relays.own) == 1


async def test_past_its_deadline_a_root_is_given_up_and_a_warning_says_what_it_costs(start, relays, caplog):
    process = start()
    await process.commit([root(3)], 8)
    with caplog.at_level(logging.WARNING, "nodewire.provider"):
        for epoch in range(5, 12):
            await process.turn(epoch)
            await process.sees(epoch)  # others' alone
    assert published(relays) == [(epoch, [3]) for epoch in range(5, 9)]
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "nodewire.provider"]
    assert all(said in warning for said in (root(3).request[:8], "chunk 3", "epoch 8", "price", "bond"))


async def test_before_its_deadline_a_root_is_published_though_it_may_be_certified_already(start, relays):
    process = start()
    await process.commit([root(0)], 6)
    await process.turn(5)
    await process.turn(6)
    assert published(relays) == [(5, [0]), (6, [0])]
    await process.sees(5, relays.own[0])
    await process.sees(6, relays.own[1])
    await process.turn(7)
    assert process.file.certified(root(0)) == 5
    assert process.file.due(7, 10) == []


async def test_what_is_published_keeps_its_job_to_be_shown(start, relays):
    process = start()
    process.file.begun(EVENT, TICKET)
    process.file.ended(EVENT.id, 1)
    await process.commit([root(0).model_copy(update={"request": EVENT.id})], 20)
    await process.turn(5)
    await process.sees(5, *relays.own)
    await process.turn(6)
    until_s = COMMITTEE.close_ms(5 + SHOWN_EPOCHS) // 1000
    process.file.sweep(until_s - 1)
    assert process.file.jobs() == {EVENT.id}
    process.file.sweep(until_s)
    assert process.file.jobs() == frozenset()
