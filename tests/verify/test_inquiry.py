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


async def test_what_took_too_long_once_keeps_no_worker_busy_again_in_less_time(record, monkeypatch):
    computed, stuck = [], True

    async def recompute(inputs, **given):
        computed.append(inputs.size)
        if stuck:
            await asyncio.Event().wait()
        return ComputedLeaves(())

    async def loaded(kind, manifest, task):
        return None, task

    def inputs(size, task=TASKS[1]):
        return SimpleNamespace(manifest=MANIFEST, digest="d", sample=SimpleNamespace(task=task), size=size)

    monkeypatch.setattr(module, "recompute", recompute)
    inquiry = Inquiry(record, record, Draws(record.request), None, {MANIFEST.kind: SimpleNamespace()}, loaded)
    with pytest.raises(Overloaded, match="not done in the 0"):
        await inquiry.recompute(inputs(100), within_s=0.2)
    stuck = False
    for size, within_s in ((100, 0.1), (200, 0.2)):
        with pytest.raises(Overloaded, match="100 bytes took more than"):
            await inquiry.recompute(inputs(size), within_s=within_s)
    assert computed == [100]
    await inquiry.recompute(inputs(200, TASKS[2]), within_s=0.2)  # another task
    await inquiry.recompute(inputs(99), within_s=0.2)  # a smaller one; now it is fast, and nothing is held against it
    await inquiry.recompute(inputs(100), within_s=0.1)
    assert computed == [100, 200, 99, 100]
