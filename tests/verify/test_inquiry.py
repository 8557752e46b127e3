"""What an inquiry reads of a job before it computes: all that was certified."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from nodewire.errors import NotFound, TimedOut
from nodewire.protocol.committee import commitment
from nodewire.protocol.committee.commitment import Commitment
from nodewire.protocol.verification.sample import Sample
from nodewire.verify import inquiry as module
from nodewire.verify.inquiry import Inquiry, Overloaded
from nodewire.verify.recomputation import ComputedLeaves
from tests.customer.public_record import PROVIDERS, TASKS, PublicRecord
from tests.protocol import documents
from tests.protocol.committee.actors import keys

MANIFEST = documents.manifest()
AN_AGE_S = 1_000


class Record(PublicRecord):
    """Also as an inquiry's market."""

    async def manifest(self, address, digest):
        return MANIFEST

    def epochs_after(self, epoch):
        return []


class Draws:
    def __init__(self, request):
        self._request = request

    async def request(self, id_):
        return self._request

    def snapshot(self, epoch):
        return None


@pytest.fixture
def record():
    return Record()


async def looked_into(record, monkeypatch, *, slow="", within_s=None):
    """With what an inquiry has the chunk computed. What is `slow` takes for ever: loading, inputs, or computing."""
    taken = {}

    async def gather(**given):
        taken.update(given)
        if slow == "inputs":
            await asyncio.sleep(60)
        return SimpleNamespace(sample=given["sample"], manifest=given["manifest"], digest="d", size=1)

    async def recompute(inputs, **given):
        if slow == "computing":
            await asyncio.sleep(60)
        return ComputedLeaves(())

    async def loaded(kind, manifest, task):
        if slow == "loading":
            await asyncio.sleep(60)
        return None, task

    async def unknown(sha256):
        raise NotFound("snapshot", "gone")

    monkeypatch.setattr(module, "gather", gather)
    monkeypatch.setattr(module, "recompute", recompute)
    monkeypatch.setattr(record, "snapshot", unknown)
    sample = Sample(
        provider=PROVIDERS[1].public,
        request=record.request.id,
        task=TASKS[1],
        chunk=1,
        attempt=0,
        root="ab" * 32,
        verifiers=(),
    )
    inquiry = Inquiry(record, record, Draws(record.request), None, {MANIFEST.kind: SimpleNamespace()}, loaded)
    inputs = await inquiry.inputs(sample, 1, within_s=within_s)
    await inquiry.recompute(inputs, within_s=within_s)
    return taken


async def test_a_root_counts_that_was_certified_more_than_sixteen_epochs_ago(monkeypatch):
    record = Record(began_s=PublicRecord().began_s - AN_AGE_S)
    first = record.epoch_at(record.began_s) + 1
    for i in range(20):
        record.certified(first + i, [record.committed(0, [i], first + i)])
    final = (await looked_into(record, monkeypatch))["final"]
    assert sorted(one.root.chunk for one in final.roots.values()) == list(range(20))


async def test_strangers_events_are_not_read(record, monkeypatch):
    epoch, stranger = record.epoch_at(record.began_s) + 1, keys("stranger")
    document = Commitment(committee=record.committee_digest, epoch=epoch, chunks=(record.root(TASKS[0], 0, "its own"),))
    theirs, _ = commitment.build(stranger, document, created_at=record.began_s)
    record.events.append(theirs)
    record.certified(epoch, [theirs, record.committed(0, [0], epoch)])
    asked = []
    fetch_all = record.fetch_all

    async def noting(filters, **how):
        asked.extend(filters)
        return await fetch_all(filters, **how)

    record.fetch_all = noting
    final = (await looked_into(record, monkeypatch))["final"]
    assert [one.provider for one in final.roots.values()] == [PROVIDERS[0].public]
    assert asked and all(one.authors and stranger.public not in one.authors for one in asked)


@pytest.mark.parametrize(
    ("slow", "error", "field"),
    [
        ("loading", Overloaded, "loading the task here"),
        ("inputs", TimedOut, "the inputs"),
        ("computing", Overloaded, "computing here"),
    ],
)
async def test_what_took_too_long_is_said(record, monkeypatch, slow, error, field):
    """An oracle that was too slow itself must not be taken for a provider that shows nothing."""
    with pytest.raises(TimedOut) as raised:
        await looked_into(record, monkeypatch, slow=slow, within_s=0.2)
    assert (type(raised.value), raised.value.field) == (error, field)
    assert "0.2 s" in raised.value.reason


class Bench:
    """An inquiry of a machine that is stuck at one step, as long as `stuck_at` names it."""

    def __init__(self, record, monkeypatch):
        self.computed, self.stuck_at, self.now_s = [], "", 1_000.0
        monkeypatch.setattr(module, "recompute", self._recompute)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        kinds = {MANIFEST.kind: SimpleNamespace()}
        self._inquiry = Inquiry(record, record, Draws(record.request), None, kinds, self._loaded)

    async def compute(self, size, *, within_s, task=TASKS[1]):
        inputs = SimpleNamespace(manifest=MANIFEST, digest="d", sample=SimpleNamespace(task=task), size=size)
        await self._inquiry.recompute(inputs, within_s=within_s)

    async def _recompute(self, inputs, **given):
        self.computed.append(inputs.size)
        if self.stuck_at == "computing":
            await asyncio.Event().wait()
        return ComputedLeaves(())

    async def _loaded(self, kind, manifest, task):
        if self.stuck_at == "loading":
            await asyncio.Event().wait()
        return None, task


async def test_what_took_too_long_just_before_keeps_no_worker_busy_again_in_less_time(record, monkeypatch):
    bench = Bench(record, monkeypatch)
    bench.stuck_at = "computing"
    with pytest.raises(Overloaded, match="not done in the 0"):
        await bench.compute(100, within_s=0.2)
    bench.stuck_at = ""
    for size, within_s in ((100, 0.1), (200, 0.2)):
        with pytest.raises(Overloaded, match="100 bytes took more than"):
            await bench.compute(size, within_s=within_s)
    assert bench.computed == [100]
    await bench.compute(200, within_s=0.2, task=TASKS[2])  # another task
    await bench.compute(99, within_s=0.2)  # a smaller one; now it is fast, and nothing is held against it
    await bench.compute(100, within_s=0.1)
    assert bench.computed == [100, 200, 99, 100]


@pytest.mark.parametrize("step", ["loading", "computing"])
async def test_a_machine_that_was_busy_once_is_not_blind_to_a_task_for_ever(record, monkeypatch, step):
    """Of strangers' samples no more than an epoch is ever left: what took one was refused until the oracle's end."""
    bench = Bench(record, monkeypatch)
    bench.stuck_at = step
    with pytest.raises(Overloaded, match=step):
        await bench.compute(100, within_s=0.2)
    bench.stuck_at, tried = "", len(bench.computed)
    bench.now_s += 0.7
    with pytest.raises(Overloaded, match="100 bytes took more than"):
        await bench.compute(100, within_s=0.2)
    bench.now_s += 0.2
    await bench.compute(100, within_s=0.2)
    assert bench.computed[tried:] == [100]


async def test_a_task_that_always_takes_too_long_has_a_fifth_of_a_workers_time(record, monkeypatch):
    bench = Bench(record, monkeypatch)
    bench.stuck_at = "computing"
    for _ in range(100):
        with pytest.raises(Overloaded):
            await bench.compute(100, within_s=0.01)
        bench.now_s += 0.01  # the time that a trial takes, or that goes by before the next is asked
    assert 15 <= len(bench.computed) <= 25
