"""What a provider still knows after a crash: new objects over the files of those that are gone."""

import os
import sqlite3
import stat

import pytest

from nodewire.errors import BadConfig, NodeFailed, NotFound
from nodewire.nostr.event import sign
from nodewire.protocol import kinds
from nodewire.protocol.committee.commitment import ChunkRoot
from nodewire.protocol.job import request as job
from nodewire.protocol.job.chunk import Opening, leaf_of, opening
from nodewire.protocol.job.plan import Terms, Verification
from nodewire.protocol.job.request import Ticket
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.provider.evidence.server import EvidenceServer, KeptJob, recall_from
from nodewire.provider.evidence.store import KeptWork, StoredCommitment
from nodewire.wire.evidence.pull import Want
from nodewire.wire.evidence.spool import ORPHAN_S, Spool
from tests.protocol import documents
from tests.protocol.committee.actors import committee

COMMITTEE, SEATS = committee(1)
ORACLE = SEATS[0].keys.public
PROVIDER = documents.PROVIDERS[0]
HASH = "ab" * 32
PLAN = documents.plan(
    terms=Terms(max_chunk_msat=10_000, max_total_msat=100_000, verify="sampled"),
    verification=Verification(policy="sampled", rate_ppm=50_000, share_ppm=0),
)


def requested(at_s=1):
    tags, content = job.tags_and_content(
        PLAN,
        manifest_address=f"{kinds.MANIFEST}:{HASH}:tiny",
        certificate_event=HASH,
        partials=(),
        relays=(),
        ticket=HASH,
    )
    return sign(documents.CUSTOMER, kinds.INFERENCE, created_at=at_s, content=content, tags=tags)


EVENT = requested()
REQUEST = EVENT.id
TICKET = Ticket(request=REQUEST, salt=HASH, inputs=(("prompt", 0, HASH),))


def chunk_root(chunk=0, task="driver", request=REQUEST) -> ChunkRoot:
    return ChunkRoot(request=request, task=task, chunk=chunk, attempt=0, root=f"{chunk:064x}")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kept.db"


async def manifest_of(request):
    return documents.manifest()


async def granted(peer, request):
    """Nobody was drawn."""
    return ()


def started(path) -> tuple[Spool, KeptWork, EvidenceServer]:
    """A provider's process begins over what an earlier one left."""
    spool, file = Spool(path.parent / "spool", 10**6), KeptWork(path)
    return spool, file, EvidenceServer(PROVIDER, COMMITTEE, spool, granted, recall_from(file, manifest_of))


def worked(path, end_s=None):
    """A process takes the job, computes a chunk and is killed: nothing is closed."""
    spool, file, holding = started(path)
    file.begun(EVENT, TICKET)
    holding.keep(KeptJob(job.parse(EVENT), documents.manifest(), TICKET))
    for seq in range(3):
        frame = Frame("hidden.0", seq, (Array("float32", (1, 1, 8), bytes([seq]) * 32),), {"chunk": 0})
        spool.write(REQUEST, "hidden.0", 0, frame)
    if end_s is not None:
        file.ended(REQUEST, end_s)
    return spool, file


def want(what, **changes) -> Want:
    fields = {"what": what, "request": REQUEST, "task": "driver", "attempt": 0, "first": 0, "last": 0}
    return Want(**(fields | changes))


async def test_openings_inputs_and_tickets_are_shown_after_a_crash(path):
    gone = worked(path)
    spool, _, holding = started(path)
    shown = Opening.unpack(await holding.show(ORACLE, want("opening")))
    leaves = [leaf_of(PLAN.manifest, frame) for _, frame in spool.read(REQUEST, "hidden.0") if frame.seq == 0]
    mine = opening(PROVIDER, documents.manifest(), leaves, request=REQUEST, task="driver", chunk=0, attempt=0)
    assert shown == mine
    assert Ticket.parse(await holding.show(ORACLE, want("ticket"))) == TICKET
    frames = list(await holding.show(ORACLE, want("frames", task="stage.0", edges=("hidden.0",), last=9)))
    assert [frame.seq for _, frame in frames] == [0, 1, 2]
    del gone


async def test_a_job_whose_manifest_is_not_to_be_had_is_not_found(path):
    worked(path)

    async def gone(request):
        raise NotFound("manifest", "no relay has it")

    spool, file, _ = started(path)
    with pytest.raises(NotFound):
        await EvidenceServer(PROVIDER, COMMITTEE, spool, granted, recall_from(file, gone)).show(ORACLE, want("ticket"))


async def test_what_a_crash_interrupted_is_kept_until_its_time_and_then_all_of_it_goes(path):
    worked(path)
    spool, file, holding = started(path)
    late_s = (path.parent / "spool" / REQUEST / "hidden.0").stat().st_mtime + ORPHAN_S + 2
    file.interrupted(late_s + 10)
    file.sweep(late_s)
    assert spool.sweep(late_s, but=file.jobs()) == 0
    assert await holding.show(ORACLE, want("opening"))
    file.sweep(late_s + 10)
    assert file.jobs() == frozenset()
    assert spool.sweep(late_s + 10, but=file.jobs()) > 0
    with pytest.raises(NotFound):
        await started(path)[2].show(ORACLE, want("ticket"))


def test_what_is_published_later_keeps_its_job_longer_and_what_is_uncertified_as_long_as_it_is(path):
    _, file = worked(path, end_s=100)
    file.add([chunk_root()], 20)
    file.make(StoredCommitment(10, HASH, 1, (chunk_root(),)), 500)
    file.sweep(600)
    assert REQUEST in file.jobs()  # nobody knows yet what became of it
    file.decide(10, certified=True)
    file.sweep(499)
    assert REQUEST in file.jobs()
    file.sweep(500)
    assert REQUEST not in file.jobs()


def test_roots_go_on_after_a_crash(path):
    KeptWork(path).add([chunk_root(0), chunk_root(0, "stage.0")], 20)
    KeptWork(path).add([chunk_root(1)], 21)
    again = KeptWork(path)
    assert again.due(5, 10) == [chunk_root(0), chunk_root(0, "stage.0"), chunk_root(1)]
    assert again.due(5, 2) == [chunk_root(0), chunk_root(0, "stage.0")]
    assert again.due(21, 10) == [chunk_root(1)]


def test_the_first_root_of_a_key_stays(path):
    file = KeptWork(path)
    file.add([chunk_root()], 20)
    file.add([chunk_root().model_copy(update={"root": HASH})], 30)
    assert file.due(5, 10) == [chunk_root()]
    assert file.due(21, 10) == []


def test_a_commitment_is_made_once_an_epoch_and_its_roots_are_due_again_when_it_is_lost(path):
    file = KeptWork(path)
    file.add([chunk_root(0), chunk_root(1)], 20)
    made = StoredCommitment(5, HASH, 77, (chunk_root(0),))
    file.make(made, 0)
    with pytest.raises(sqlite3.IntegrityError):
        file.make(made, 0)
    again = KeptWork(path)
    assert again.made(5) == made
    assert again.undecided() == [(5, HASH)]
    assert again.due(6, 10) == [chunk_root(1)]
    assert again.due(20, 10) == [chunk_root(0), chunk_root(1)]  # its last chance
    again.decide(5, certified=False)
    assert again.due(6, 10) == [chunk_root(0), chunk_root(1)]
    again.make(StoredCommitment(6, HASH, 78, (chunk_root(0), chunk_root(1))), 0)
    again.decide(6, certified=True)
    assert again.due(7, 10) == again.undecided() == []
    assert again.certified(chunk_root(0)) == 6


def test_what_nobody_certified_in_time_is_given_up_and_forgotten(path):
    file = KeptWork(path)
    file.add([chunk_root(0), chunk_root(1)], 20)
    file.make(StoredCommitment(5, HASH, 1, (chunk_root(0),)), 0)
    file.make(StoredCommitment(20, HASH, 1, (chunk_root(1),)), 0)
    file.decide(5, certified=True)
    assert file.give_up(20) == []
    assert file.give_up(21) == []  # one is certified, of the other that is still open
    file.decide(20, certified=False)
    assert file.give_up(21) == [(chunk_root(1), 20)]
    assert KeptWork(path).give_up(21) == []
    assert KeptWork(path).made(5) is None


def test_nobody_else_may_read_the_file(path):
    file = KeptWork(path)
    file.begun(EVENT, TICKET)
    for entry in path.parent.iterdir():
        assert stat.S_IMODE(entry.stat().st_mode) == 0o600, entry


@pytest.mark.parametrize("damage", ["truncated", "overwritten", "no database"])
def test_a_damaged_file_is_refused_and_the_error_says_what_to_do(path, damage):
    file = KeptWork(path)
    for n in range(50):
        file.begun(requested(n), TICKET)
    file.close()
    size = path.stat().st_size
    assert size > 8192
    if damage == "truncated":
        os.truncate(path, size // 2)
    elif damage == "overwritten":
        with path.open("r+b") as raw:
            raw.seek(4096)
            raw.write(os.urandom(size - 4096))
    else:
        path.write_bytes(os.urandom(size))
    with pytest.raises((BadConfig, NodeFailed)) as refused:
        KeptWork(path)
    assert refused.value.field == str(path)
    assert "move it away" in refused.value.reason


def test_what_comes_after_the_end_of_a_process_is_refused_and_is_no_damage(path):
    file = KeptWork(path)
    file.close()
    with pytest.raises(NodeFailed, match="cannot be read or written"):
        file.ended(REQUEST, 1)


def test_a_file_of_another_version_is_refused(path):
    KeptWork(path).close()
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 9")
    other.close()
    with pytest.raises(BadConfig, match="version 9"):
        KeptWork(path)


def test_a_crash_in_the_middle_of_a_write_leaves_what_was_before(path):
    """The tail of the log that SQLite writes first is torn off."""
    file = KeptWork(path)
    file.add([chunk_root(0)], 20)
    file.add([chunk_root(1)], 20)
    torn = path.parent / "torn.db"
    torn.write_bytes(path.read_bytes())
    log = (path.parent / "kept.db-wal").read_bytes()
    (path.parent / "torn.db-wal").write_bytes(log[:-100])
    assert KeptWork(torn).due(5, 10) == [chunk_root(0)]
