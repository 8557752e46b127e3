"""A driver that closes a chunk when its deadline is over: who computed it would be paid, could never commit to it, and
would lose four times the price by a complaint. It keeps the job alive by a row now and then."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nodewire.core.job_task_group import JobTaskGroup
from nodewire.errors import BadFrame, TimedOut
from nodewire.pay.accounts.ledger import Ledger
from nodewire.protocol.committee.commitment import ChunkRoot
from nodewire.protocol.job import request as requests
from nodewire.protocol.job.chunk import Leaf, LeafTensor
from nodewire.protocol.job.chunk_close import Close
from nodewire.protocol.job.frame_refusal import driven
from nodewire.protocol.job.plan import CERTIFY_EPOCHS
from nodewire.provider.admission.checks import AdmittedJob
from nodewire.provider.evidence.committer import Committer
from nodewire.provider.evidence.server import EvidenceServer
from nodewire.provider.evidence.store import KeptWork
from nodewire.provider.inference import proof
from nodewire.provider.inference.chunk_biller import ChunkBiller
from nodewire.provider.inference.credit import Credit
from nodewire.provider.inference.job_context import JobContext
from nodewire.provider.inference.job_publisher import JobPublisher
from nodewire.provider.inference.proof import CommitteeProof
from nodewire.wire.evidence.spool import Spool
from tests.protocol import documents
from tests.protocol.committee.actors import committee
from tests.provider.evidence.test_store import EVENT, TICKET

COMMITTEE, _ = committee(1)
MANIFEST = documents.manifest()
DRIVER, STAGE, _ = documents.PROVIDERS


@pytest.fixture
def made(tmp_path):
    """A job, whether it is judged, and the stage's part of it."""

    def make(policy="sampled", keys=STAGE):
        request = proving_request(policy)
        spool, kept = Spool(tmp_path / "spool", 10**6), KeptWork(tmp_path / "kept.db")
        committing = Committer(keys, None, None, SimpleNamespace(committee=COMMITTEE), kept)
        holding = EvidenceServer(keys, COMMITTEE, spool, None)
        proven = CommitteeProof(keys.public, kept, holding, committing, spool, COMMITTEE)
        return AdmittedJob(EVENT, TICKET, request, MANIFEST, {}), proven, kept

    return make


def proving_request(policy):
    request = requests.parse(EVENT)
    verification = request.plan.verification.model_copy(update={"policy": policy})
    object.__setattr__(request, "plan", request.plan.model_copy(update={"verification": verification}))
    return request


def at(monkeypatch, epoch):
    now_s = (COMMITTEE.close_ms(epoch) - 1) / 1000
    monkeypatch.setattr(proof, "time", SimpleNamespace(time=lambda: now_s))


def root_of(job, chunk=0):
    return ChunkRoot(request=job.request.id, task="stage.0", chunk=chunk, attempt=0, root="ab" * 32)


@pytest.mark.parametrize("chunk", [0, 1, 40])
async def test_what_can_no_more_be_certified_in_time_is_not_committed_to(made, monkeypatch, chunk):
    job, proven, kept = made()
    last = job.request.plan.deadline_epoch(chunk, COMMITTEE.epoch_ms) - CERTIFY_EPOCHS
    await proven.begins(job)
    at(monkeypatch, last + 1)
    with pytest.raises(TimedOut, match="certificate"):
        await proven.commit(job.request.plan, [root_of(job, chunk)])
    assert kept.due(0, 10) == []
    at(monkeypatch, last)
    await proven.commit(job.request.plan, [root_of(job, chunk)])
    assert kept.due(0, 10) == [root_of(job, chunk)]


async def test_where_nothing_is_sampled_nobody_can_complain_and_nothing_is_too_late(made, monkeypatch):
    job, proven, kept = made("none")
    await proven.begins(job)
    at(monkeypatch, 10**6)
    await proven.commit(job.request.plan, [root_of(job)])
    assert kept.due(0, 10) == [root_of(job)]


@pytest.mark.parametrize("by", ["driver", "itself", "nobody"])
async def test_a_chunk_that_is_closed_too_late_is_not_asked_for_and_its_driver_is_named(made, monkeypatch, by):
    """Without a close nobody else is to blame: the job had failed, and only this node says that it was complete."""
    keys = DRIVER if by == "itself" else STAGE
    job, proven, _ = made(keys=keys)
    await proven.begins(job)
    at(monkeypatch, 10**6)
    context = JobContext(keys, job.request, MANIFEST)
    published, ledger, group = [], Ledger(":memory:"), JobTaskGroup()

    async def publish(event):
        published.append(event)

    settling = ChunkBiller(
        context,
        ledger,
        Credit(patience_s=30),
        commit=lambda roots: proven.commit(job.request.plan, roots),
        telling=JobPublisher(context, publish, publish),
        stating=None,
        prompts=SimpleNamespace(cached=lambda made, units: 0),
        task_group=group,
    )
    close = Close.sign(DRIVER, request=job.request.id, attempt=0, chunk=0, units=1, end=False)
    shown = LeafTensor(dtype="float32", shape=(1, 1, 8), sha256="cd" * 32, sketch=b"")
    task = context.tasks[0]
    edge = next(edge.name for edge in MANIFEST.edges if edge.source == task)
    leaves = {task: [Leaf(edge=edge, seq=0, tensors=(shown,))]}
    taking = settling.bill(0, 1, leaves, end=False, close=None if by == "nobody" else close)
    with pytest.raises(BadFrame if by == "driver" else TimedOut) as caught:
        await taking
    assert by != "driver" or caught.value.field == driven(MANIFEST)
    assert published == [] and ledger.untold() == []
    await group.end()
