"""Whoever waits for verdicts waits no longer than they can take, and misses none because something was lost once."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from nodewire.customer.audit import verdict_watcher
from nodewire.customer.audit.verdict_watcher import VERDICT_EPOCHS, follow
from nodewire.customer.payments.job_payments import ZapPayment
from nodewire.errors import LinkLost, NotFound
from nodewire.pay.accounts.debts import Debt, Key
from nodewire.plan.epoch import Epoch
from nodewire.protocol import kinds
from nodewire.protocol.job import feedback
from nodewire.protocol.verification.complaint import CLAIMED_EPOCHS, ENOUGH_EPOCHS
from tests.customer.public_record import HOLDER, PRICE_MSAT, PROVIDERS, TASKS, PublicRecord
from tests.protocol.committee.actors import committee, digest

QUICK, SEATS = committee(
    name="quick",
    genesis_s=int(time.time()) - 100,
    epoch_ms=400,
    skew_ms=40,
    beat_ms=200,
    bond_holders=(HOLDER.public,),
    verify_rate_ppm=1_000_000,
    verify_share_ppm=150_000,
)


class Followed(PublicRecord):
    """A job of one chunk by three providers, which waits for its verdicts. As a pool it tells verdicts as they come."""

    def __init__(self) -> None:
        super().__init__(began_s=int(time.time()), committee=QUICK, seats=tuple(SEATS))
        self.last = self.epoch_at(int(time.time()))
        self.epochs: list[Epoch] = []
        self.unread = self.lost = 0
        self.lacking: tuple[str, ...] = ()

    def certify(self) -> None:
        body = self.certified(self.last, [self.committed(number, (0,), self.last) for number in range(3)])
        self.epochs.append(Epoch(body, digest("beacon"), self.events[0], ()))

    def judge(self) -> None:
        for number in range(3):
            self.judged(self.verdict(number, 0, self.last))

    def epochs_after(self, epoch):
        return [one for one in self.epochs if one.body.epoch > epoch]

    async def snapshot(self, sha256):
        if self.unread:
            self.unread -= 1
            raise NotFound("snapshot", "not now")
        return await super().snapshot(sha256)

    async def contents(self, body):
        return replace(await super().contents(body), lacking=self.lacking)

    def subscribe(self, filters):
        return Subscription(self)

    async def follow(self, claims=()):
        roots = {(PROVIDERS[number].public, self.root(TASKS[number], 0)): None for number in range(3)}
        async with asyncio.timeout(60):
            return await follow(self.request, roots, claims, market=self, pool=self, last_epoch=self.last)

    def paid(self, at_s=0):
        """What the customer paid each provider."""
        claims = [feedback.parse(self.claimed(n, 0, at_s=at_s or int(time.time()))) for n in range(3)]
        debt = Debt(Key(self.request.id, PROVIDERS[0].public, 0), PRICE_MSAT)
        return [ZapPayment(said, said.due, debt) for said in claims]

    def skip(self, epochs):
        """The committee goes on, and certifies nothing of the job."""
        for epoch in epochs:
            self.epochs.append(Epoch(self.certified(epoch, []), digest("beacon"), self.events[0], ()))


class Subscription:
    def __init__(self, record) -> None:
        self.record = record

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def __aiter__(self):
        if self.record.lost:
            self.record.lost -= 1
            raise LinkLost("relays", "gone")
        told: set[str] = set()
        while True:
            for event in self.record.events:
                if event.kind == kinds.CERTIFICATE and event.id not in told:
                    told.add(event.id)
                    yield event
            await asyncio.sleep(0.02)


async def test_what_was_drawn_and_judged_is_waited_for_and_no_longer():
    record = Followed()
    record.certify()
    record.judge()
    found = await record.follow()
    assert QUICK.epoch_at(int(time.time() * 1000)) - record.last < VERDICT_EPOCHS
    assert (found.roots, found.certified, len(found.samples), len(found.verdicts)) == (3, 3, 3, 3)


async def test_a_committee_that_stops_before_it_certifies_anything_is_not_waited_for():
    found = await Followed().follow()
    assert (found.roots, found.certified, found.samples) == (3, 0, [])


async def test_a_committee_that_stops_before_it_judges_is_waited_for_as_long_as_it_has_time():
    record = Followed()
    record.certify()
    found = await record.follow()
    assert (len(found.samples), found.verdicts) == (3, {})
    assert VERDICT_EPOCHS + 2 <= QUICK.epoch_at(int(time.time() * 1000)) - record.last <= VERDICT_EPOCHS + 5


async def test_an_epoch_that_could_not_be_read_once_is_read_again():
    record = Followed()
    record.unread = 2
    record.certify()
    record.judge()
    found = await record.follow()
    assert (found.certified, len(found.samples), len(found.verdicts)) == (3, 3, 3)


async def test_an_epoch_that_can_never_be_read_ends_the_wait_all_the_same():
    record = Followed()
    record.unread = 10**9
    record.certify()
    assert (await record.follow()).certified == 0


async def test_a_lost_subscription_is_opened_again():
    record = Followed()
    record.lost = 2
    record.certify()
    record.judge()
    assert len((await record.follow()).verdicts) == 3


async def test_a_listener_that_dies_ends_the_wait_and_is_told_of(monkeypatch, caplog):
    record = Followed()
    record.certify()
    record.judge()
    monkeypatch.setattr(verdict_watcher, "_take", lambda *_: 1 // 0)
    assert (await record.follow()).verdicts == {}
    assert "ZeroDivisionError" in caplog.text


async def test_what_an_honest_provider_commits_to_late_is_waited_for_and_not_made_again():
    record = Followed()
    claims = record.paid()
    first = record.epoch_at(claims[0].claim.created_at)
    record.last = first  # when the job ended
    record.skip(range(first + 1, first + CLAIMED_EPOCHS))

    async def late():
        while QUICK.epoch_at(int(time.time() * 1000)) < first + CLAIMED_EPOCHS + 1:
            await asyncio.sleep(0.05)
        record.last = first + CLAIMED_EPOCHS
        record.certify()
        record.judge()

    certifying = asyncio.create_task(late())
    found = await record.follow(claims)
    await certifying
    assert (len(found.final), found.uncommitted, found.failed_chunk()) == (3, {}, None)
    assert (len(found.samples), len(found.verdicts)) == (3, 3)


@pytest.mark.parametrize("certified", [ENOUGH_EPOCHS, ENOUGH_EPOCHS - 1])
async def test_what_nobody_can_commit_to_any_more_is_made_again_unless_the_committee_stood_still(certified):
    record = Followed()
    claims = record.paid()
    first = record.epoch_at(claims[0].claim.created_at)
    record.last = first
    record.skip(range(first + 1, first + 1 + certified))
    found = await record.follow(claims)
    whole = {keys.public: 0 for keys in PROVIDERS}
    assert found.uncommitted == (whole if certified == ENOUGH_EPOCHS else {})
    assert CLAIMED_EPOCHS + 2 <= QUICK.epoch_at(int(time.time() * 1000)) - first <= CLAIMED_EPOCHS + 4


async def test_a_claim_of_an_epoch_that_is_remembered_no_more_is_looked_for_on_relays():
    """A job may have lasted for longer than certificates are remembered."""
    record = Followed()
    claims = record.paid(at_s=int(time.time()) - 24)
    then = record.epoch_at(claims[0].claim.created_at)
    record.certified(then, [record.committed(number, (0,), then) for number in range(3)])
    found = await record.follow(claims)
    assert (len(found.final), found.uncommitted) == (3, {})


async def test_an_event_of_a_stranger_that_nobody_has_keeps_no_verdict_from_being_waited_for():
    record = Followed()
    record.lacking = (digest("gone"),)
    record.certify()
    record.judge()
    found = await record.follow()
    assert (found.certified, len(found.samples), len(found.verdicts)) == (3, 3, 3)


@pytest.fixture(autouse=True)
async def nothing_is_left_running():
    yield
    assert [task for task in asyncio.all_tasks() if "_listen" in repr(task.get_coro())] == []
