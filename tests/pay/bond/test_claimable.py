"""What a key can claim is found by certified verdicts on relays; what a stranger publishes there finds nothing."""

from __future__ import annotations

import time

import pytest

import tests.pay.bond_market as bm
from nodewire.errors import LinkLost, NotFound
from nodewire.nostr import event as events
from nodewire.pay.bond import claimable
from nodewire.pay.bond.bond_holder import VerdictSettlement
from nodewire.protocol import kinds
from nodewire.protocol.committee import oracle_round
from nodewire.protocol.verification import verdict
from nodewire.protocol.verification.verdict import Certificate


class Relays:
    def __init__(self, *stored):
        self.stored, self.asked = stored, []

    async def fetch_all(self, filters):
        self.asked.append(filters)
        return [event for event in self.stored if any(one.matches(event) for one in filters)]


class Holder:
    """Has settled what `dues` names: msat by payee, by case."""

    def __init__(self, **dues):
        self.dues = dues

    async def case(self, case):
        if case not in self.dues:
            raise NotFound("case", "no verdict on it was presented")
        return VerdictSettlement(case, "", "fail", "", True, "", {}, "", self.dues[case])


def published(said, age_s=0, voters=bm.ORACLES[:3]):
    topic = verdict.topic(said.key)
    votes = tuple(
        oracle_round.build_vote(voter, said.committee, topic, said.digest(), created_at=7) for voter in voters
    )
    return verdict.build(bm.STRANGER, Certificate(said, votes), created_at=int(time.time()) - age_s)


FAIL = bm.failed()
LONG_AGO_S = claimable.RECENT_EPOCHS * bm.COMMITTEE.epoch_ms // 1_000 + 100


async def find(keys, relays, **dues):
    return await claimable.find(relays, bm.COMMITTEE, Holder(**dues), keys.public)


async def test_a_customer_finds_a_failed_chunk_of_its_own_job_however_old():
    event = published(FAIL, LONG_AGO_S)
    (found,) = await find(bm.CUSTOMER, Relays(bm.REQUEST, event), **{FAIL.key: {bm.CUSTOMER.public: 700}})
    assert found == claimable.Claimable(event.id, bm.REQUEST.id, "driver", 0, "fail", 700, True)


async def test_what_nobody_has_presented_yet_is_told_with_no_amount():
    (found,) = await find(bm.CUSTOMER, Relays(bm.REQUEST, published(FAIL)))
    assert (found.amount_msat, found.is_presented) == (0, False)


async def test_what_was_pulled_already_is_not_found_again():
    assert await find(bm.CUSTOMER, Relays(bm.REQUEST, published(FAIL)), **{FAIL.key: {bm.OTHER.public: 5}}) == []


async def test_a_pass_owes_its_customer_nothing_and_a_verifier_that_agreed_its_pay():
    relays = Relays(bm.REQUEST, published(bm.verdict_of()))
    assert await find(bm.CUSTOMER, relays) == []
    assert [one.outcome for one in await find(bm.VERIFIERS[0], relays)] == ["pass"]
    assert await find(bm.VERIFIERS[2], relays) == []  # it disagreed


async def test_an_oracle_finds_convictions_alone():
    relays = Relays(published(FAIL), published(bm.verdict_of(chunk=1)))
    assert [one.chunk for one in await find(bm.ORACLES[3], relays)] == [0]
    assert await find(bm.STRANGER, relays) == []


async def test_others_jobs_are_looked_at_only_while_they_are_recent():
    assert await find(bm.VERIFIERS[0], Relays(published(FAIL, LONG_AGO_S))) == []
    assert len(await find(bm.VERIFIERS[0], Relays(published(FAIL, 1)))) == 1


async def test_the_newest_comes_first_and_two_certificates_of_a_verdict_are_found_once():
    newer = bm.failed(chunk=7)
    stored = (published(FAIL, 60), published(FAIL, 30, bm.ORACLES[1:]), published(newer, 10))
    found = await find(bm.CUSTOMER, Relays(bm.REQUEST, *stored))
    assert [(one.chunk, one.certificate) for one in found] == [(7, stored[2].id), (0, stored[1].id)]


def other_topic(event):
    tags = [["n", "rating/x"] if tag[0] == "n" else list(tag) for tag in event.tags]
    return events.sign(bm.STRANGER, kinds.CERTIFICATE, created_at=event.created_at, tags=tags, content=event.content)


def other_content(event):
    return events.sign(
        bm.STRANGER, kinds.CERTIFICATE, created_at=event.created_at, tags=[list(tag) for tag in event.tags], content="{"
    )


@pytest.mark.parametrize(
    "event",
    [other_topic(published(FAIL)), other_content(published(FAIL)), published(FAIL, voters=bm.ORACLES[:2])],
    ids=["of another topic", "malformed", "by two oracles of four"],
)
async def test_what_is_no_certified_verdict_finds_nothing(event):
    relays = Relays(bm.REQUEST, event)
    assert await find(bm.CUSTOMER, relays) == await find(bm.VERIFIERS[0], relays) == []
    assert len(relays.asked) == 5  # jobs twice, recent verdicts twice, those on the customer's job


async def test_many_jobs_are_asked_for_in_parts():
    jobs = [bm.request(salt=f"{n}") for n in range(257)]
    relays = Relays(*jobs)
    assert await find(bm.CUSTOMER, relays) == []
    asked = [one.tags["e"] for filters in relays.asked for one in filters if "e" in one.tags]
    assert [len(some) for some in asked] == [256, 1]
    assert frozenset().union(*asked) == {job.id for job in jobs}


async def test_a_holder_that_does_not_answer_is_no_empty_list():
    class Silent(Holder):
        async def case(self, case):
            raise LinkLost("holder", "silent")

    with pytest.raises(LinkLost):
        await claimable.find(Relays(bm.REQUEST, published(FAIL)), bm.COMMITTEE, Silent(), bm.CUSTOMER.public)
