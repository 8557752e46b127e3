"""A claim of payment without certified roots: which complaints hold, and what four oracles make of one that does."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from nodewire.errors import BadInput, NotFound
from nodewire.nostr import event as events
from nodewire.oracle.court import complaints as module
from nodewire.oracle.court import verdict_rules
from nodewire.oracle.court.case import PublishVerdict, SayVote, Tick, VoteCame, start
from nodewire.oracle.court.complaints import LOOKED_EPOCHS, MAX_OF_ONE, Complaints
from nodewire.protocol.verification import complaint, verdict
from nodewire.protocol.verification.complaint import CLAIMED_EPOCHS, ENOUGH_EPOCHS, HEARD_EPOCHS
from tests.customer.public_record import CUSTOMER, PRICE_MSAT, PROVIDERS, TASKS, PublicRecord
from tests.protocol.committee.actors import keys

ACCUSED = 1


class Record(PublicRecord):
    """What relays have of the job; all of its providers have bonds."""

    def __init__(self, bonded=PROVIDERS):
        super().__init__()
        self.bonded = bonded
        self.said = []
        self.epoch = self.epoch_at(self.began_s) + 1
        """In which the claim is made."""

    async def snapshot(self, sha256):
        nodes = [SimpleNamespace(pubkey=k.public, bond_msat=self.committee.bond_unit_msat) for k in self.bonded]
        return SimpleNamespace(nodes=nodes)

    def claim(self, **changes):
        at_s = (self.committee.close_ms(self.epoch) - 1) // 1000
        return self.claimed(ACCUSED, 0, at_s=at_s, **changes)

    def certify(self, number, committed=()):
        self.certified(number, committed)

    def complaints(self):
        found = Complaints(self, self, self, lambda: {self.epoch: "ab" * 32}, self.said.append)
        self.now(self.epoch)
        return found

    def now(self, epoch):
        self.at_ms = self.committee.close_ms(epoch) - 1

    def time_s(self):
        return self.at_ms / 1000

    def complained(self, claim, by=CUSTOMER):
        return complaint.build(by, self.committee.digest(), claim, created_at=claim.created_at)

    @property
    def last(self):
        return self.epoch + CLAIMED_EPOCHS


@pytest.fixture
def record():
    return Record()


async def looked(record, complaints, after=2):
    record.now(record.last + after)
    await complaints.look()
    return record.said


async def test_a_claim_whose_root_nobody_certified_in_time_was_withheld(record):
    complaints = record.complaints()
    complaints.add(record.complained(record.claim()))
    for epoch in range(record.epoch + 1, record.last + 1):
        record.certify(epoch)
        record.now(epoch)
        await complaints.look()
    assert record.said == []  # its last epoch's round is not over
    (held,) = await looked(record, complaints)
    assert (held.epoch, held.task, held.complaint.provider) == (record.last, TASKS[ACCUSED], PROVIDERS[ACCUSED].public)
    assert await looked(record, complaints) == [held]  # once


@pytest.mark.parametrize("late", [0, 1])
async def test_a_root_is_in_time_up_to_the_last_epoch(record, late):
    complaints = record.complaints()
    complaints.add(record.complained(record.claim()))
    for epoch in range(record.epoch + 1, record.last + late):
        record.certify(epoch)
    record.certify(record.last + late, [record.committed(ACCUSED, (0,), record.last + late)])
    assert len(await looked(record, complaints)) == late


async def test_another_root_than_the_claimed_one_is_none(record):
    complaints = record.complaints()
    complaints.add(record.complained(record.claim()))
    for epoch in range(record.epoch + 1, record.last):
        record.certify(epoch)
    record.certify(record.last, [record.committed(ACCUSED, (0,), record.last, said="else")])
    assert len(await looked(record, complaints)) == 1


@pytest.mark.parametrize("missing", [0, 1])
async def test_where_the_committee_certified_little_nobody_is_to_blame(record, missing):
    complaints = record.complaints()
    complaints.add(record.complained(record.claim()))
    for epoch in range(record.last - ENOUGH_EPOCHS + 1 + missing, record.last + 1):
        record.certify(epoch)
    assert len(await looked(record, complaints)) == 1 - missing


async def test_what_cannot_be_read_is_read_again_and_not_held_against_anyone(record):
    complaints = record.complaints()
    complaints.add(record.complained(record.claim()))
    for epoch in range(record.epoch + 1, record.last + 1):
        record.certify(epoch, [record.committed(ACCUSED, (0,), epoch)] if epoch == record.last else [])
    read = record.contents

    async def unreadable(body):
        raise NotFound("inventories", "gone")

    record.contents = unreadable
    assert await looked(record, complaints) == []
    record.contents = read
    assert await looked(record, complaints, after=3) == []  # it was certified


async def test_what_relays_have_lost_of_a_commitment_convicts_nobody(record):
    """The certificate holds its id, and oracles its bytes: whoever had it deleted, the claim is founded."""
    complaints = record.complaints()
    complaints.add(record.complained(record.claim()))
    for epoch in range(record.epoch + 1, record.last + 1):
        lost = [record.committed(ACCUSED, (0,), epoch)] if epoch == record.last else []
        record.certify(epoch, lost)
        record.events = [event for event in record.events if event not in lost]
    assert await looked(record, complaints) == []


async def test_false_complaints_are_refused_or_come_to_nothing(record):
    complaints = record.complaints()
    honest = record.claim()
    stranger = keys("stranger")
    with pytest.raises(BadInput):
        complaints.add(record.complained(honest, by=stranger))  # not the customer's
    lying = events.sign(stranger, honest.kind, created_at=honest.created_at, tags=honest.tags)
    with pytest.raises(BadInput):
        complaints.add(record.complained(dataclasses.replace(lying, pubkey=honest.pubkey)))  # not the accused's word
    record.now(record.last + 20)
    with pytest.raises(BadInput, match="created_at"):
        complaints.add(record.complained(honest))
    record.now(record.epoch)
    await complaints.look()  # who has a bond is known now
    other = Record(bonded=())
    unbonded = other.complaints()
    unbonded._bonded, unbonded._read = {stranger.public: 1}, 1
    with pytest.raises(BadInput, match="bond"):
        unbonded.add(other.complained(other.claim()))


async def test_small_claims_do_not_hide_a_large_one(record):
    complaints = record.complaints()
    complaints.add(record.complained(record.claim(amount_msat=2)))
    complaints.add(record.complained(record.claim(amount_msat=PRICE_MSAT)))
    for attempt in range(MAX_OF_ONE):
        complaints.add(record.complained(record.claim(amount_msat=1, attempt=attempt)))
    for epoch in range(record.epoch + 1, record.last + 1):
        record.certify(epoch)
    held = await looked(record, complaints)
    assert len(held) == MAX_OF_ONE
    assert [one.complaint.due.amount_msat for one in held[:2]] == [PRICE_MSAT, 2]


async def test_four_oracles_certify_it_and_it_is_no_sample(record):
    complaints = record.complaints()
    complaints.add(record.complained(record.claim()))
    for epoch in range(record.epoch + 1, record.last + 1):
        record.certify(epoch)
    (held,) = await looked(record, complaints)
    states = [start(record.committee, seat.keys.public, can_recompute=False) for seat in record.seats]
    now = Tick(record.at_ms)
    votes = []
    for n, seat in enumerate(record.seats):
        states[n], _ = verdict_rules.apply(now, states[n])
        states[n], actions = verdict_rules.apply(held, states[n])
        (said,) = [action for action in actions if isinstance(action, SayVote)]
        votes.append(verdict.build_vote(seat.keys, said.verdict, created_at=1))
    published = []
    for n in range(len(states)):
        for vote in votes:
            states[n], actions = verdict_rules.apply(VoteCame(vote), states[n])
            published += [action.certificate for action in actions if isinstance(action, PublishVerdict)]
        states[n], actions = verdict_rules.apply(Tick(record.at_ms + record.committee.skew_ms), states[n])
        published += [action.certificate for action in actions if isinstance(action, PublishVerdict)]
    assert published
    for one in published:
        one.check(record.committee)
        said = one.verdict
        assert (said.outcome, said.convicted, said.claimed_msat) == ("withheld", (), PRICE_MSAT)
        assert said.key == held.complaint.key == verdict.parse(verdict.build(CUSTOMER, one, created_at=2)).verdict.key
        assert said.key != verdict.sample_key(said.provider, said.request, said.task, said.chunk, said.attempt)


def test_a_verdict_on_a_claim_says_withheld_and_how_much(record):
    fair = record.verdict(1, 0, 5, outcome="withheld", claimed="cd" * 32, claimed_msat=7)
    assert fair.key == complaint.case_key(fair.provider, fair.request, fair.claimed)
    for change in ({"claimed_msat": 0}, {"claimed": ""}, {"outcome": "unsure"}, {"verifiers": (("ab" * 32, True),)}):
        with pytest.raises(ValueError, match="claimed"):
            record.verdict(1, 0, 5, **{"outcome": "withheld", "claimed": "cd" * 32, "claimed_msat": 7, **change})


async def test_where_nobody_has_a_bond_no_complaint_is_kept_for_there_is_nothing_to_take():
    """Free keys that accuse free keys would be kept by the hundred thousand, of 64 KiB each."""
    record = Record(bonded=())
    complaints = record.complaints()
    claim = record.claim()
    complaints.add(record.complained(claim))  # before anything was read
    await complaints.look()
    assert complaints._open == {}
    with pytest.raises(BadInput, match="no bond"):
        complaints.add(record.complained(claim))


async def test_a_complaint_that_is_of_another_committee_or_an_ancient_claim_is_refused(record):
    complaints, claim = record.complaints(), record.claim()
    with pytest.raises(BadInput, match="another committee's") as raised:
        complaints.add(complaint.build(CUSTOMER, "00" * 32, claim, created_at=claim.created_at))
    assert raised.value.field == "c"
    late = record.epoch + HEARD_EPOCHS + 1
    record.now(late)
    at_s = record.committee.close_ms(late) // 1000 - 1
    with pytest.raises(BadInput, match="over 4096 before the complaint") as raised:
        complaints.add(complaint.build(CUSTOMER, record.committee.digest(), claim, created_at=at_s))
    assert raised.value.field == "created_at"


async def test_complaints_are_bounded_by_the_accused_and_before_bonds_are_known(record, monkeypatch):
    complaints = record.complaints()
    monkeypatch.setattr(module, "MAX_UNREAD", 1)
    complaints.add(record.complained(record.claim()))
    with pytest.raises(BadInput, match="not known yet who has a bond"):
        complaints.add(record.complained(record.claim(attempt=1)))
    await complaints.look()
    complaints.add(record.complained(record.claim(attempt=1)))  # it is known now
    monkeypatch.setattr(module, "MAX_ACCUSED", 0)
    complaints._open.clear()
    with pytest.raises(BadInput, match="nodes are accused already"):
        complaints.add(record.complained(record.claim()))


async def test_of_two_complaints_about_a_claim_the_earlier_counts(record):
    complaints, claim = record.complaints(), record.claim()
    later = complaint.build(CUSTOMER, record.committee.digest(), claim, created_at=claim.created_at + 1)
    for event in (later, record.complained(claim), later):
        complaints.add(event)
    for epoch in range(record.epoch + 1, record.last + 1):
        record.certify(epoch)
    (held,) = await looked(record, complaints, after=3)
    assert held.complaint.created_at == claim.created_at


async def test_a_complaint_about_a_job_that_no_relay_has_waits_and_is_given_up(record):
    complaints = record.complaints()
    complaints.add(record.complained(record.claim()))
    for epoch in range(record.epoch + 1, record.last + 1):
        record.certify(epoch)
    events_, record.events = record.events, [event for event in record.events if event.id != record.request.id]
    assert len(events_) == len(record.events) + 1
    assert await looked(record, complaints, after=LOOKED_EPOCHS) == []
    assert complaints._open[PROVIDERS[ACCUSED].public]
    assert await looked(record, complaints, after=LOOKED_EPOCHS + 1) == []
    assert not any(complaints._open.values())
    record.events = events_
    assert await looked(record, complaints, after=LOOKED_EPOCHS + 1) == []


async def test_whose_bond_cannot_be_read_is_not_held_to_a_complaint(record):
    complaints = record.complaints()
    complaints.add(record.complained(record.claim()))
    for epoch in range(record.epoch + 1, record.last + 1):
        record.certify(epoch)

    async def unreadable(sha256):
        raise NotFound("snapshot", "gone")

    record.snapshot = unreadable
    assert await looked(record, complaints) == []
    assert not any(complaints._open.values())
