"""A provider that is paid and commits to nothing is never drawn. What it may do so that no complaint reaches it."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from nodewire.customer.payments import debts
from nodewire.errors import BadInput
from nodewire.protocol.job import feedback
from nodewire.protocol.verification import complaint
from nodewire.protocol.verification.complaint import CLAIMED_EPOCHS, ENOUGH_EPOCHS, HEARD_EPOCHS
from tests.customer.paid_job import DRIVER, asks, job
from tests.customer.public_record import CUSTOMER
from tests.oracle.court.test_oracle_complaints import Record

DAY_S = 86_400


@pytest.fixture
def record():
    return Record()


async def complained(record, claim, epoch, commits=()):
    """What four oracles' part in a complaint of `epoch` makes of it; `commits`: epochs whose certificate holds the
    claim's root."""
    complaints = record.complaints()
    record.epoch, made = epoch, record.epoch
    for number in range(made + 1, epoch + CLAIMED_EPOCHS + 1):
        record.certify(number, [record.committed(1, (0,), number)] if number in commits else [])
    record.now(epoch)
    at_s = record.at_ms // 1000
    complaints.add(complaint.build(CUSTOMER, record.committee.digest(), claim, created_at=at_s))
    record.now(epoch + CLAIMED_EPOCHS + 2)
    await complaints.look()
    return record.said


@pytest.mark.parametrize("later", [CLAIMED_EPOCHS + 5, 40, 200])
async def test_a_job_that_lasts_long_or_stays_unpaid_keeps_no_early_claim_from_being_complained_of(record, later):
    """A customer complains when its job is over and paid. A node of a long ring, or one whose endpoint takes no last
    payment, has its first claims behind it by then."""
    claim = record.claim()
    (held,) = await complained(record, claim, record.epoch + later)
    assert held.epoch == record.epoch + CLAIMED_EPOCHS  # the complaint's
    assert held.complaint.claim == claim


@pytest.mark.parametrize("within", [1, CLAIMED_EPOCHS])
async def test_an_honest_claim_is_founded_however_late_somebody_complains(record, within):
    """Also where relays have lost the commitment: the certificates of the claim's time are read, too."""
    claim, certified = record.claim(), record.epoch + within
    complaints_of = complained(record, claim, record.epoch + 100, commits=(certified,))
    contents = record.contents

    async def of_oracles(body):
        lost = [one for one in record.events if one.kind == 8854]
        record.events = [one for one in record.events if one not in lost]
        return await contents(body)

    record.contents = of_oracles
    assert await complaints_of == []


async def test_whose_claim_fell_into_a_time_without_certificates_is_not_to_blame_later(record):
    """It could not commit then, and its chunk's deadline may have passed since."""
    claim, complaints, later = record.claim(), record.complaints(), record.epoch + 100
    for number in range(record.epoch + CLAIMED_EPOCHS - ENOUGH_EPOCHS + 2, later + CLAIMED_EPOCHS + 1):
        record.certify(number)  # three of those of the claim's time
    record.now(later)
    complaints.add(complaint.build(CUSTOMER, record.committee.digest(), claim, created_at=record.at_ms // 1000))
    record.now(later + CLAIMED_EPOCHS + 2)
    await complaints.look()
    assert record.said == []


async def test_who_complains_beforehand_takes_no_time_from_the_accused(record):
    """The complaint is dated eight epochs before the claim."""
    claim, complaints, last = record.claim(), record.complaints(), record.last
    early_s = record.committee.close_ms(record.epoch - CLAIMED_EPOCHS) // 1000
    complaints.add(complaint.build(CUSTOMER, record.committee.digest(), claim, created_at=early_s))
    for number in range(record.epoch + 1, last + 1):
        record.certify(number, [record.committed(1, (0,), number)] if number == last else [])
        record.now(number)
        await complaints.look()
    record.now(last + 2)
    await complaints.look()
    assert record.said == []


async def test_oracles_vote_on_the_same_complaint_of_several(record):
    claim = record.claim()
    dated = [(record.committee.close_ms(record.epoch + n) - 1) // 1000 for n in (0, 1)]
    first, second = (complaint.build(CUSTOMER, record.committee.digest(), claim, created_at=at_s) for at_s in dated)
    open_ = []
    for order in ((first, second), (second, first)):
        complaints = record.complaints()
        for one in order:
            complaints.add(one)
        open_.append(complaints._open)
    assert open_[0] == open_[1]


async def test_a_claim_of_which_records_need_not_be_kept_any_more_convicts_nobody(record):
    claim, complaints = record.claim(), record.complaints()
    record.now(record.epoch + HEARD_EPOCHS + 1)
    late = complaint.build(CUSTOMER, record.committee.digest(), claim, created_at=record.at_ms // 1000)
    with pytest.raises(BadInput, match="created_at"):
        complaints.add(late)


@pytest.mark.parametrize("back_s", [601, DAY_S, 20_000 * DAY_S])
def test_a_claim_that_is_dated_before_its_request_is_not_paid(back_s):
    """A day back no oracle hears a complaint about it any more."""
    now_s = int(time.time())
    payments, _ = job(requested_s=now_s)
    with pytest.raises(BadInput, match="created_at"):
        payments.expects(replace(asks(DRIVER, 0), created_at=now_s - back_s))
    assert payments.expects(replace(asks(DRIVER, 0), created_at=now_s - 599))  # a clock that is behind


@pytest.mark.parametrize(("back_s", "counts"), [(599, True), (601, False)])
def test_such_a_claim_is_not_found_among_old_debts_either(record, back_s, counts):
    said = feedback.parse(record.claimed(1, 0, at_s=record.began_s - back_s))
    assert debts._is_in_plan(said, record.request) == counts
