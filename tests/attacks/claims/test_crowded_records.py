"""What anybody says about a public request, or a provider about its own claim, hides no claim from a complaint."""

from __future__ import annotations

import pytest

from nodewire.customer.payments.receipt_finalizer import Closings
from nodewire.customer.payments.refunds import Refunds
from nodewire.nostr.nips.nip01 import newest_first
from nodewire.pay.accounts.ledger import Ledger
from nodewire.protocol.job import feedback
from nodewire.protocol.verification import complaint
from tests.customer.payments.test_receipt_finalizer import Holder
from tests.customer.public_record import CUSTOMER, PROVIDERS, PublicRecord
from tests.protocol.committee.actors import keys

ROOM = 40
"""Events that a client has room for of an answer, the newest first."""
CHEAT = 1


class Record(PublicRecord):
    """Relays from which no more than ROOM events are taken in all, but what is asked for by its id."""

    async def fetch_all(self, filters, timeout_s=1.0):
        named = {id_ for one in filters for id_ in one.ids or ()}
        found = sorted(await self.fetch(filters), key=newest_first)
        crowd = [event for event in found if event.id not in named]
        return [event for event in found if event.id in named] + crowd[:ROOM]


@pytest.fixture
def record():
    return Record()


@pytest.fixture
def close(record, tmp_path):
    """Pay a chunk of the cheat's, which commits to nothing, and close the job after what `meanwhile` does."""

    async def closing(meanwhile):
        ledger = Ledger(tmp_path / "ledger.db")
        paid = record.claimed(CHEAT, 0)
        record.pay(ledger, CHEAT, 0)
        record.certified(record.epoch_at(record.began_s) + 1, [])
        refunds = Refunds(CUSTOMER, record, record, Holder())
        made = Closings(CUSTOMER, ledger, record, record, "bcrt", set(), refunds)
        await made._give_missing(await made._records(record.request.id))  # as at the job's end
        meanwhile()
        assert await made.close(record.request.id) is not None
        found = [complaint.parse(event) for event in record.published if event.kind == complaint.KIND]
        ledger.close()
        assert [one.claim.id for one in found] == [paid.id]

    return closing


def crowd(record, by, request):
    for n in range(2 * ROOM):
        event = feedback.build(by, request, CUSTOMER.public, "partial", created_at=record.began_s + 100 + n)
        record.events.append(event)


async def test_strangers_who_crowd_a_request_hide_nothing(record, close):
    await close(lambda: crowd(record, keys("stranger"), record.request.id))


async def test_a_provider_that_crowds_its_own_claim_hides_nothing(record, close):
    await close(lambda: crowd(record, PROVIDERS[CHEAT], record.request.id))


async def test_a_second_claim_that_is_dated_before_the_paid_one_is_not_taken_for_it(record, close):
    """Its root may be of something that it did commit to."""
    await close(lambda: record.claimed(CHEAT, 0, at_s=record.began_s - 5, root="cd" * 32))
