"""A provider keeps what it may have to show, and commits to nothing that it could not keep."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from nodewire.errors import Busy, NodeFailed
from nodewire.protocol.committee.commitment import ChunkRoot
from nodewire.protocol.job import request as job
from nodewire.protocol.job.chunk import Opening
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.provider.admission.checks import AdmittedJob
from nodewire.provider.evidence.committer import Committer
from nodewire.provider.evidence.server import EvidenceServer, KeptJob
from nodewire.provider.evidence.store import KeptWork
from nodewire.provider.inference import proof
from nodewire.provider.inference.proof import CommitteeProof, most_bytes
from nodewire.wire.evidence.pull import Want
from nodewire.wire.evidence.spool import Spool
from tests.protocol import documents
from tests.protocol.committee.actors import committee
from tests.provider.evidence.test_store import EVENT, PROVIDER, TICKET
from tests.provider.inference.test_provider_job import CUSTOMER, REQUEST, folder, make_market  # noqa: F401  (a fixture)
from tests.provider.inference.test_statements import ended

COMMITTEE, SEATS = committee(1)
ORACLE = SEATS[0].keys.public


async def granted(peer, request):
    """Nobody was drawn."""
    return ()


# ---- a job whose frames find no room ------------------------------------------------------------------------------


def shows(run):
    """How this provider answers an oracle about the job: of a root that it committed to, whether it opens it."""
    keys, spool = run._context.keys, run._statements._spool
    holding = EvidenceServer(keys, COMMITTEE, spool, granted)
    holding.keep(KeptJob(run.request, run._context.manifest, None))

    async def opens(root):
        want = Want(
            what="opening", request=REQUEST, task=root.task, attempt=0, first=root.chunk, last=root.chunk, epoch=0
        )
        return Opening.unpack(await holding.show(ORACLE, want)).root() == root.root

    return opens


@pytest.mark.parametrize("lookahead", [1, 8])
@pytest.mark.parametrize("number", [0, 1], ids=["driver", "stage"])
async def test_a_full_spool_ends_the_job_as_the_nodes_own_fault_before_it_commits_to_what_it_cannot_show(
    folder,  # noqa: F811
    tmp_path,
    number,
    lookahead,
):
    market = make_market(folder, tmp_path, "sampled", lookahead=lookahead)
    run = list(market.runs.values())[number]
    run._statements._spool = Spool(tmp_path / "small", 50_000)  # two chunks of four fit
    errors = await ended(market)
    error = errors[run._context.me]
    assert isinstance(error, NodeFailed) and error.field == "spool"
    said = [f for f in map(market.parsed, market.events) if f and f.provider == run._context.me]
    assert (said[-1].status, said[-1].text) == ("error", "node-failed")
    mine = [root for root in market.committed if root.task in run.tasks]
    assert 0 < len(mine) < 4
    opens = shows(run)
    assert [root.chunk for root in mine if not await opens(root)] == []


async def test_a_statement_that_is_not_kept_ends_the_job_as_a_frame_does(folder, tmp_path):  # noqa: F811
    market = make_market(folder, tmp_path, "sampled")
    stage = list(market.runs.values())[1]
    spool = stage._statements._spool

    def keep(said, keep_sent=spool.keep_sent):
        spool._max_job_bytes = 0 if said.chunk == 1 else spool._max_job_bytes
        keep_sent(said)

    spool.keep_sent = keep
    errors = await ended(market)
    assert isinstance(errors[stage._context.me], NodeFailed)
    assert [root.chunk for root in market.committed if root.task in stage.tasks] == [0]


async def test_what_is_committed_to_is_in_the_spool_though_its_consumers_have_no_room(folder, tmp_path):  # noqa: F811
    """A driver closes a chunk before its last token goes out, and other frames may be in front of that."""
    market = make_market(folder, tmp_path, "sampled")
    driver = next(run for run in market.runs.values() if run.drives)
    put, opens, opened = driver._mailbox.put, shows(driver), []

    async def slow(frame):
        await put(frame)
        for _ in range(100):
            await asyncio.sleep(0)

    async def commit(roots):
        opened.extend([await opens(root) for root in roots])

    driver._mailbox.put, driver._settling._commit = slow, commit
    assert set((await ended(market)).values()) == {None}
    assert opened == [True] * 4


# ---- what is kept after a job's end -------------------------------------------------------------------------------


@pytest.fixture
def provider(tmp_path, monkeypatch):
    """Its Proven, spool and file, with one frame of a job; `admitted(policy)` is the job."""
    now_s = COMMITTEE.close_ms(job.parse(EVENT).plan.epoch) / 1000
    monkeypatch.setattr(proof, "time", SimpleNamespace(time=lambda: now_s))
    spool, file = Spool(tmp_path / "spool", 10**6), KeptWork(tmp_path / "kept.db")
    committing = Committer(CUSTOMER, None, None, SimpleNamespace(committee=None), file)
    proven = CommitteeProof(
        PROVIDER.public, file, EvidenceServer(PROVIDER, COMMITTEE, spool, granted), committing, spool, COMMITTEE
    )
    return proven, spool, file


def admitted(policy="sampled"):
    request = job.parse(EVENT)
    verification = request.plan.verification.model_copy(update={"policy": policy})
    object.__setattr__(request, "plan", request.plan.model_copy(update={"verification": verification}))
    return AdmittedJob(EVENT, TICKET, request, documents.manifest(), {})


def root_of(job):
    return ChunkRoot(request=job.request.id, task="driver", chunk=0, attempt=0, root="ab" * 32)


async def begin(proven, spool, job):
    await proven.begins(job)
    spool.write(job.request.id, "hidden.0", 0, Frame("hidden.0", 0, (Array("uint8", (9,), bytes(9)),), {"chunk": 0}))


@pytest.mark.parametrize(("policy", "commits"), [("none", True), ("none", False), ("sampled", False)])
async def test_frames_that_nobody_may_ask_for_go_with_their_job(provider, policy, commits):
    proven, spool, file = provider
    job = admitted(policy)
    await begin(proven, spool, job)
    if commits:
        await proven.commit(job.request.plan, [root_of(job)])
    await proven.ended(job.request.id)
    assert spool.bytes == 0
    file.sweep(2**40)
    assert not file.jobs()


async def test_frames_of_what_was_committed_to_stay(provider):
    proven, spool, file = provider
    job = admitted()
    await begin(proven, spool, job)
    await proven.commit(job.request.plan, [root_of(job)])
    await proven.ended(job.request.id)
    assert spool.bytes
    await begin(proven, spool, job)  # a customer asks for it once more, and it goes no further
    await proven.ended(job.request.id)
    assert spool.bytes
    assert job.request.id in file.jobs()


async def test_a_commitment_that_was_under_way_when_the_job_was_stopped_counts(provider):
    proven, spool, file = provider
    job = admitted()
    await begin(proven, spool, job)
    file._lock.acquire()
    committing = asyncio.create_task(proven.commit(job.request.plan, [root_of(job)]))
    await asyncio.sleep(0)
    committing.cancel()
    await asyncio.gather(committing, return_exceptions=True)
    file._lock.release()
    await proven.ended(job.request.id)
    assert spool.bytes


# ---- whether further jobs find room -------------------------------------------------------------------------------


async def test_a_generation_that_has_begun_finds_room_to_its_end_while_others_fill_the_spool(folder, tmp_path):  # noqa: F811
    market = make_market(folder, tmp_path, "sampled")
    for number, run in enumerate(market.runs.values()):
        context = run._context
        most = most_bytes(AdmittedJob(None, None, run.request, context.manifest, context.params), context.me)
        run._statements._spool = spool = Spool(tmp_path / f"small-{number}", most + 10_000)
        spool.reserve(run.request.id, most)
        for seq in range(20):  # more than the rest takes
            spool.write("ef" * 32, "e", 0, Frame("e", seq, (Array("uint8", (1_000,), bytes(1_000)),), {}))
        assert not spool.is_whole("ef" * 32)
    assert set((await ended(market)).values()) == {None}
    for run in market.runs.values():
        assert run._statements._spool.is_whole(REQUEST)
        assert sorted(root.chunk for root in market.committed if root.task in run.tasks) == [0, 1, 2, 3]


async def test_a_sampled_generation_takes_room_as_it_begins_and_gives_back_what_it_has_not_used(provider):
    proven, spool, _ = provider
    job = admitted()
    most = most_bytes(job, PROVIDER.public)
    spool._max_bytes = 3 * most - 1
    others = [replace(job, request=replace(job.request, id=f"{n:064x}")) for n in range(3)]
    await proven.begins(others[0])
    await proven.begins(others[1])
    with pytest.raises(Busy, match="spool"):
        await proven.begins(others[2])
    await proven.ended(others[2].request.id)
    await proven.ended(others[1].request.id)
    await proven.begins(others[2])


@pytest.mark.parametrize(("policy", "mode"), [("none", "generate"), ("sampled", "embed")])
async def test_room_is_taken_for_sampled_generations_alone(provider, policy, mode):
    proven, spool, _ = provider
    job = admitted(policy)
    spool._max_bytes = 1
    await proven.begins(replace(job, manifest=job.manifest.model_copy(update={"mode": mode})))


def test_the_room_of_a_job_is_that_of_its_positions_on_the_edges_of_its_tasks():
    job = admitted()
    manifest, plan = job.manifest, job.request.plan
    assert 0 < most_bytes(replace(job, params={"positions": 10}), PROVIDER.public) < most_bytes(job, PROVIDER.public)
    assert most_bytes(replace(job, params={"positions": manifest.context}), PROVIDER.public) == most_bytes(
        job, PROVIDER.public
    )
    of_one = {
        public: sum(
            edge.bytes_per_position for edge in manifest.edges if {edge.source, edge.target} & {*plan.tasks_of(public)}
        )
        for public in plan.providers()
    }
    for public, nbytes in of_one.items():
        two, one = (most_bytes(replace(job, params={"positions": n * manifest.chunk}), public) for n in (2, 1))
        assert two - one >= nbytes * manifest.chunk
    told = {"positions": 10, "logprobs": 5}
    assert max(most_bytes(replace(job, params=told), p) for p in of_one) >= 10 * 4_096
