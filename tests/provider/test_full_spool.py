"""A provider keeps what it may have to show, and commits to nothing that it could not keep."""

import asyncio
from types import SimpleNamespace

import pytest

from nodewire.errors import Busy, NodeFailed
from nodewire.protocol import job
from nodewire.protocol.chunk import Opening
from nodewire.protocol.commitment import ChunkRoot
from nodewire.protocol.frame import Array, Frame
from nodewire.provider.admission import AdmittedJob
from nodewire.provider.committing import Committing
from nodewire.provider.holding import Holding, Kept
from nodewire.provider.kept import KeptWork
from nodewire.provider.proving import Proven, _most_bytes
from nodewire.wire.pull import Want
from nodewire.wire.spool import Spool
from tests.protocol import documents
from tests.protocol_committee.actors import committee
from tests.provider.test_kept import EVENT, PROVIDER, TICKET
from tests.provider.test_provider_job import CUSTOMER, REQUEST, folder, make_market  # noqa: F401  (a fixture)
from tests.provider.test_statements import ended

COMMITTEE, SEATS = committee(1)
ORACLE = SEATS[0].keys.public


async def granted(peer, request):
    """Nobody was drawn."""
    return ()


# ---- a job whose frames find no room ------------------------------------------------------------------------------


def shows(run):
    """How this provider answers an oracle about the job: of a root that it committed to, whether it opens it."""
    keys, spool = run._context.keys, run._statements._spool
    holding = Holding(keys, COMMITTEE, spool, granted)
    holding.keep(Kept(run.request, run._context.manifest, None))

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
def provider(tmp_path):
    """Its Proven, spool and file, with one frame of a job; `admitted(policy)` is the job."""
    spool, file = Spool(tmp_path / "spool", 10**6), KeptWork(tmp_path / "kept.db")
    committing = Committing(CUSTOMER, None, None, SimpleNamespace(committee=None), file)
    proven = Proven(PROVIDER.public, file, Holding(PROVIDER, COMMITTEE, spool, granted), committing, spool, 60_000)
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


# ---- room that is set apart --------------------------------------------------------------------------------------


async def test_a_job_that_may_need_more_than_is_left_is_refused_before_it_begins(tmp_path, provider):
    proven, spool, file = provider
    small = Spool(tmp_path / "small", 1_000)
    proven._spool = small
    with pytest.raises(Busy, match="spool"):
        await proven.begins(admitted())
    assert not file.jobs()
    proven._spool = spool
    await proven.begins(admitted())
    assert spool._apart > 0
    await proven.ended(admitted().request.id)
    assert spool._apart == 0


def test_what_is_set_apart_for_a_job_no_other_writes(tmp_path):
    spool = Spool(tmp_path, 10_000, 6_000)
    first, second, third = (digit * 64 for digit in "123")
    spool.set_apart(first, 6_000)
    with pytest.raises(Busy):
        spool.set_apart(second, 5_000)
    for n in range(9):  # a call's, for which nothing is set apart
        spool.write(second, "e", 0, frame(n, 1_000))
    assert not spool.is_whole(second) and spool.bytes <= 4_000
    for n in range(5):
        spool.write(first, "e", 0, frame(n, 1_000))
    assert spool.is_whole(first) and spool.next_seq(first, "e") == 5
    spool.keep_until(first, 0.0)
    assert spool._apart == 0
    spool.remove(first)
    spool.set_apart(third, 6_000)


def frame(seq, nbytes):
    return Frame("e", seq, (Array("uint8", (nbytes,), bytes(nbytes)),), {})


async def test_the_room_of_a_generation_holds_its_frames(folder, tmp_path):  # noqa: F811
    """What is set apart by the manifest's word is no less than what is written."""
    market = make_market(folder, tmp_path, "sampled", params={"positions": 300})
    for run in market.runs.values():
        job = AdmittedJob(EVENT, TICKET, run.request, run._context.manifest, run._job.params)
        run.apart = _most_bytes(job, run._context.me)
        run._statements._spool.set_apart(REQUEST, run.apart)
    assert set((await ended(market)).values()) == {None}
    for run in market.runs.values():
        assert 0 < run._statements._spool.bytes <= run.apart
