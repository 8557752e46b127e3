"""Every payment has a receipt in the end, and every receipt says what became of the work: certified, or never."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from nodewire.customer.payments.receipt_finalizer import Closings
from nodewire.customer.payments.refunds import Refunds
from nodewire.errors import NotFound, TimedOut
from nodewire.nostr.nips import nip61
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.nutzaps import authorship
from nodewire.protocol import kinds
from nodewire.protocol.job import receipt
from nodewire.protocol.verification import complaint
from tests.customer.public_record import CUSTOMER, PROVIDERS, PublicRecord


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    yield ledger
    ledger.close()


@pytest.fixture
def record():
    return PublicRecord()


def closings(record, ledger):
    return Closings(CUSTOMER, ledger, record, record, "bcrt", set(), Refunds(CUSTOMER, record, record, Holder()))


class Holder:
    """A bond holder to which nobody has presented anything yet."""

    def __init__(self):
        self.cases, self.claimed = {}, []

    async def case(self, key):
        if key not in self.cases:
            raise NotFound("case", key)
        return SimpleNamespace(due=self.cases[key], case=key)

    async def claim(self, keys, key):
        amount_msat = self.cases[key].pop(keys.public)
        self.claimed.append((key, amount_msat))
        return amount_msat

    async def collect(self, keys):
        pass


def two_chunks(record, ledger, providers=(0, 1, 2)):
    """Claimed and paid."""
    for number in providers:
        for chunk in (0, 1):
            record.claimed(number, chunk)
            record.pay(ledger, number, chunk)


def all_certified(record, epoch=None):
    epoch = epoch or record.epoch_at(record.began_s) + 1
    return record.certified(epoch, [record.committed(number, (0, 1), epoch) for number in range(3)])


def parsed(record):
    published = [event for event in record.published if event.kind == kinds.RECEIPT]
    given = [receipt.parse(event) for event in published if not receipt.is_closing(event)]
    closed = [receipt.parse_closing(event) for event in published if receipt.is_closing(event)]
    return given, closed


async def test_a_receipt_is_closed_by_the_commitment_and_the_certificate_of_each_chunk(record, ledger):
    two_chunks(record, ledger)
    body = all_certified(record)
    closed = await closings(record, ledger).close(record.request.id)
    given, closing = parsed(record)
    assert closed is not None
    assert {one.provider for one in given} == {one.provider for one in closing} == {k.public for k in PROVIDERS}
    for one in closing:
        assert one.uncertified == ()
        assert [(c.chunk, c.attempt) for c in one.final] == [(0, 0), (1, 0)]
        (committed,) = {c.commitment for c in one.final}
        assert {c.certificate for c in one.final} == {body.digest()}
        assert one.provider == next(event.pubkey for event in record.events if event.id == committed)
    assert ledger.unclosed() == []


async def test_a_receipt_cites_the_nutzap_that_paid_and_no_copy_of_it(record, ledger):
    record.claimed(0, 0)
    paid, other = record.nutzap(0, 0, 1), record.nutzap(1, 0, 1, author=PROVIDERS[2])
    record.claimed(1, 0)
    for number, event in enumerate((paid, other)):
        preimage = authorship.preimage(one.secret for one in nip61.parse(event).proofs)
        record.pay(ledger, number, 0, preimage=bytes.fromhex(preimage) if number == 0 else b"7" * 32)
    all_certified(record)
    await closings(record, ledger).close(record.request.id)
    cited = {one.provider: one.chunks[0].zap_receipt for one in parsed(record)[0]}
    assert cited == {PROVIDERS[0].public: paid.id, PROVIDERS[1].public: None}


async def test_nothing_is_given_twice_whenever_the_process_died(record, ledger):
    two_chunks(record, ledger)
    all_certified(record)
    total = 6
    for takes in range(total):  # relays take so many events, then the process dies
        refusing = closings(record, ledger)

        async def publish(event, timeout_s=1.0, takes=takes):
            if len(record.published) == takes:
                raise TimedOut("relays", "gone")
            await PublicRecord.publish(record, event)

        record.publish = publish
        with pytest.raises(TimedOut):
            await refusing.close(record.request.id)
        assert ledger.unclosed() == [record.request.id]
    del record.publish
    await closings(record, ledger).close(record.request.id)
    given, closing = parsed(record)
    assert (len(given), len(closing)) == (3, 3)
    await closings(record, ledger).close(record.request.id)
    assert len(record.published) == total


async def test_a_chunk_that_no_certificate_ever_held_is_said_to_be_so(record, ledger):
    two_chunks(record, ledger)
    epoch = record.epoch_at(record.began_s) + 1
    record.certified(epoch, [record.committed(number, (0,), epoch) for number in range(3)])
    assert await closings(record, ledger).close(record.request.id) is not None
    assert {one.uncertified for one in parsed(record)[1]} == {((1, 0),)}
    assert {tuple(c.chunk for c in one.final) for one in parsed(record)[1]} == {(0,)}
    complained = [complaint.parse(event) for event in record.published if event.kind == complaint.KIND]
    assert {(one.provider, one.due.chunk) for one in complained} == {(keys.public, 1) for keys in PROVIDERS}


async def test_what_a_complaint_gives_back_is_collected_once_and_by_the_next_process_too(ledger):
    record = PublicRecord(began_s=int(time.time()) - 60)
    two_chunks(record, ledger, providers=(1,))
    record.certified(record.epoch_at(record.began_s) + 1, [])
    await closings(record, ledger).close(record.request.id)
    one, two = (complaint.parse(event) for event in record.published if event.kind == complaint.KIND)
    holder = Holder()
    refunds = Refunds(CUSTOMER, record, record, holder)
    assert await refunds.collect() == 0
    holder.cases[one.key] = {CUSTOMER.public: 1_000}
    assert await refunds.collect() == 1_000
    assert await refunds.collect() == 0
    holder.cases[two.key] = {CUSTOMER.public: 500}
    assert await Refunds(CUSTOMER, record, record, holder).collect() == 500
    assert holder.claimed == [(one.key, 1_000), (two.key, 500)]


async def test_while_a_root_may_still_be_certified_its_receipt_is_not_closed(ledger):
    record = PublicRecord(began_s=int(time.time()) - 3)
    two_chunks(record, ledger)
    epoch = record.epoch_at(record.began_s) + 1
    record.certified(epoch, [record.committed(number, (0,), epoch) for number in range(3)])
    assert await closings(record, ledger).close(record.request.id) is None
    assert parsed(record)[1] == []


async def test_claims_that_nobody_paid_keep_no_receipt_open(record, ledger):
    two_chunks(record, ledger)
    all_certified(record, record.epoch_at(record.began_s) + 1)
    for chunk in (1, 7):
        record.claimed(0, chunk, at_s=int(time.time()), amount_msat=999)
    two_of_three = [record.committed(number, (1,), record.epoch_at(record.began_s) + 2) for number in (1, 2)]
    record.certified(record.epoch_at(record.began_s) + 2, two_of_three)
    record.claimed(0, 2)
    record.pay(ledger, 0, 2)  # nothing certified stands behind it
    assert await closings(record, ledger).close(record.request.id) is not None
    assert {one.uncertified for one in parsed(record)[1]} == {(), ((2, 0),)}


async def test_a_certified_root_that_is_not_the_claimed_one_makes_nothing_final(record, ledger):
    two_chunks(record, ledger, providers=(1,))
    epoch = record.epoch_at(record.began_s) + 1
    record.certified(epoch, [record.committed(1, (0, 1), epoch, said=" of something else")])
    await closings(record, ledger).close(record.request.id)
    assert parsed(record)[1][0].uncertified == ((0, 0), (1, 0))


async def test_an_uncertified_commitment_makes_nothing_final(record, ledger):
    two_chunks(record, ledger, providers=(1,))
    epoch = record.epoch_at(record.began_s) + 1
    record.committed(1, (0, 1), epoch)
    record.certified(epoch, [])
    await closings(record, ledger).close(record.request.id)
    assert parsed(record)[1][0].uncertified == ((0, 0), (1, 0))


async def test_a_job_that_no_relay_has_stays_owed(record, ledger):
    two_chunks(record, ledger)
    record.events.clear()
    with pytest.raises(NotFound):
        await closings(record, ledger).close(record.request.id)
    assert ledger.unclosed() == [record.request.id]


def test_a_closing_whose_tags_say_something_else_is_refused(record):
    closing = receipt.Closing(
        receipt="ab" * 32, request="cd" * 32, plan="ef" * 32, provider="12" * 32, final=(), uncertified=((0, 0),)
    )
    event = receipt.build_closing(CUSTOMER, closing, created_at=5)
    assert receipt.parse_closing(event) == closing
    assert receipt.is_closing(event)
