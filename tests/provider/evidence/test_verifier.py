"""A verifier takes up what certificate and beacon drew it for, whatever an oracle says was drawn."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from nodewire.errors import LinkLost, NotAllowed, NotFound
from nodewire.plan.epoch import Epoch
from nodewire.plan.sample import draw
from nodewire.protocol.verification import sample as verification
from nodewire.protocol.verification.sample import JobSamples
from nodewire.provider.evidence import verifier as module
from nodewire.provider.evidence.verifier import JobVerifier, VerifierPorts
from nodewire.provider.tasks.registry import Specializations
from tests.customer.public_record import PROVIDERS, PublicRecord
from tests.plan.test_sample import BEACON, COMMITTEE, node
from tests.protocol.committee.actors import digest, keys

ME = keys("me")


class Record(PublicRecord):
    """Market and relays of a node that alone can be drawn; what oracles say is `told`."""

    def __init__(self):
        super().__init__(began_s=int(time.time()) - 2 * COMMITTEE.epoch_ms // 1000)
        self.number = self.epoch_at(int(time.time())) - 1
        event = self.committed(0, range(4), self.number)
        self.body = self.certified(self.number, [event])
        self.known = True
        self.told = asyncio.Queue()

    def epochs_after(self, number):
        epoch = Epoch(self.body, BEACON, self.events[0], ())
        return [epoch] if self.known and number < self.number else []

    async def commitments(self, body):
        return (await self.contents(body)).commitments

    async def snapshot(self, sha256):
        nodes = [node(ME)]
        return type("Snapshot", (), {"epoch": self.number, "nodes": nodes})

    async def subscribe(self, filters):
        while (event := await self.told.get()) is not None:
            yield event

    async def drawn(self):
        """What the epoch truly drew."""
        held = await self.commitments(self.body)
        return draw(COMMITTEE, BEACON, held, {self.request.id: self.request}, await self.snapshot(""))

    async def said(self, seat=0, samples=None, **changes):
        fields = {
            "committee": COMMITTEE.digest(),
            "epoch": self.number,
            "certificate": self.body.digest(),
            "request": self.request.id,
            "samples": tuple(samples or await self.drawn()),
        }
        sampled = JobSamples(**{**fields, **changes})
        self.told.put_nowait(verification.build(self.seats[seat].keys, sampled, created_at=int(time.time())))


@asynccontextmanager
async def following(record, monkeypatch, works=None):
    """The samples that are taken up, as they are."""
    taken = []

    async def verify(self, sample, epoch):
        taken.append((sample, epoch))
        if works is not None:
            await works(sample)

    monkeypatch.setattr(JobVerifier, "_verify", verify)
    verifying = JobVerifier(
        keys=ME, market=record, relays=record, node=None, job_kinds={}, held=Specializations(),
        ports=VerifierPorts(commit=None, keep=None, is_paid=None),
    )  # fmt: skip
    running = asyncio.create_task(verifying.run())
    try:
        yield verifying, taken, running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(holds):
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.fixture
def record():
    return Record()


async def test_what_was_drawn_is_taken_up_once_whoever_says_it(record, monkeypatch):
    async with following(record, monkeypatch) as (_, taken, _):
        for seat in (0, 1, 2):
            await record.said(seat)
        await until(lambda: len(taken) >= 4)
        await asyncio.sleep(0.1)
        assert tuple(sample for sample, _ in taken) == await record.drawn()
        assert {epoch for _, epoch in taken} == {record.number}


@pytest.mark.parametrize(
    "changes",
    [{"epoch": 10**9}, {"epoch": 1}, {"certificate": digest("another")}, {"request": digest("another")}],
    ids=lambda changes: next(iter(changes)),
)
async def test_what_an_oracle_invents_takes_nothing_up_and_hides_nothing(record, monkeypatch, changes):
    drawn = await record.drawn()
    if "request" in changes:
        drawn = [sample.model_copy(update=changes) for sample in drawn]
    async with following(record, monkeypatch) as (verifying, taken, _):
        await record.said(3, drawn, **changes)
        await until(lambda: record.told.empty())
        await asyncio.sleep(0.05)
        assert not taken
        assert not verifying._reading
        await record.said(0)
        await until(lambda: len(taken) == 4)


async def test_samples_that_were_not_drawn_or_for_others_are_not_taken_from_the_event(record, monkeypatch):
    """An oracle adds one, names this node for another's, and puts it last: what was drawn is derived."""
    true = await record.drawn()
    invented = [
        true[0].model_copy(update={"chunk": 77}),
        *(one.model_copy(update={"verifiers": (PROVIDERS[2].public, ME.public)}) for one in true[1:]),
    ]
    async with following(record, monkeypatch) as (_, taken, _):
        await record.said(3, invented)
        await until(lambda: len(taken) == 4)
        assert tuple(sample for sample, _ in taken) == true


async def test_an_epoch_that_is_not_known_yet_is_waited_for_and_not_for_ever(record, monkeypatch):
    monkeypatch.setattr(JobVerifier, "_epoch", lambda self: now())
    current = record.number + 1

    def now():
        return current

    monkeypatch.setattr(module.asyncio, "sleep", _brief(asyncio.sleep))
    record.known = False
    async with following(record, monkeypatch) as (verifying, taken, _):
        await record.said()
        await until(lambda: verifying._reading)
        record.known = True
        await until(lambda: len(taken) == 4)
    record.known = False
    async with following(record, monkeypatch) as (verifying, taken, _):
        await record.said()
        await until(lambda: verifying._reading)
        current += module.READ_EPOCHS
        await until(lambda: not verifying._reading)
        assert not taken


async def test_one_oracle_cannot_fill_all_places(record, monkeypatch):
    monkeypatch.setattr(module, "MAX_READING", 8)
    record.known = False
    (sample, *_) = await record.drawn()
    async with following(record, monkeypatch) as (verifying, taken, _):
        for n in range(20):
            other = digest(f"{n}")
            await record.said(3, [sample.model_copy(update={"request": other})], request=other)
        await until(lambda: record.told.empty())
        assert len(verifying._reading) == 8 // len(record.seats)
        record.known = True
        await record.said(0)
        await until(lambda: len(taken) == 4)


async def test_a_fault_is_logged_and_the_others_go_on(record, monkeypatch, caplog):
    done = []

    async def works(sample):
        if sample.chunk == 0:
            raise KeyError("x")
        if sample.chunk == 1:
            raise NotFound("x")
        done.append(sample.chunk)

    async with following(record, monkeypatch, works) as (verifying, _, running):
        await record.said()
        await until(lambda: len(done) == 2 and not verifying._running)
        assert not running.done()
    assert [one.exc_info[0] for one in caplog.records if one.levelname == "ERROR"] == [KeyError]


async def test_relays_that_tell_nothing_any_more_are_an_error(record, monkeypatch):
    async with following(record, monkeypatch) as (_, _, running):
        record.told.put_nowait(None)
        with pytest.raises(LinkLost):
            await asyncio.wait_for(running, 3)


def _brief(sleep):
    async def briefly(delay_s):
        await sleep(min(delay_s, 0.01))

    return briefly


class Payments:
    """What the holder says, one answer after the other; the last for ever."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), 0

    async def __call__(self, request, chunk, epoch, number):
        self.asked += 1
        self.number = number
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answers", "computes"),
    [((True,), True), ((False, True), False), ((LinkLost("holder", "away"),), True)],
    ids=["paid", "paid when it was drawn", "nobody to ask"],
)
async def test_nobody_computes_for_a_customer_who_does_not_pay_for_it(record, monkeypatch, answers, computes):
    computed, payments = [], Payments(*answers)

    async def compute(self, sample, epoch, request):
        computed.append(sample.chunk)
        raise NotFound("inputs", "enough is known")

    monkeypatch.setattr(JobVerifier, "_compute", compute)
    monkeypatch.setattr(module.asyncio, "sleep", _brief(asyncio.sleep))
    verifying = JobVerifier(
        keys=ME, market=record, relays=record, node=None, job_kinds={}, held=Specializations(),
        ports=VerifierPorts(commit=None, keep=None, is_paid=payments),
    )  # fmt: skip
    monkeypatch.setattr(JobVerifier, "_epoch", lambda self: record.number)
    (sample, *_) = await record.drawn()
    verifying._requests[sample.request] = record.request
    with pytest.raises(NotFound if computes else NotAllowed):
        await verifying._verify(sample, record.number)
    assert bool(computed) == computes
    assert payments.number == 1  # this node does not hold the manifest, which would tell whether there is a context
