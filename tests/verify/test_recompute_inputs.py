"""On what inputs a sampled chunk is computed again: by real spools and holdings, without a wire between."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from nodewire.errors import BadHash, Busy, LinkLost, NotAllowed, NotFound, Withheld
from nodewire.protocol.committee.commitment import ChunkRoot
from nodewire.protocol.job.chunk import chunk_of, leaf_of, opening
from nodewire.protocol.job.plan import Assignment, Terms, Verification
from nodewire.protocol.job.request import Request, Ticket
from nodewire.protocol.model.manifest import Manifest
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification.sample import Sample
from nodewire.protocol.verification.statement import FrameStatement, digest_of, hashed
from nodewire.provider.evidence.server import EvidenceServer, KeptJob
from nodewire.verify import recomputation as module
from nodewire.verify.finality import CertifiedRoot, Finality
from nodewire.verify.recomputation import Equivocated, Unopened, gather, recompute
from nodewire.wire.evidence.spool import Spool
from tests.protocol import documents
from tests.protocol.committee.actors import committee, keys

MANIFEST = documents.manifest()
REQUEST, HASH = "cd" * 32, "ab" * 32
UPSTREAM, PROVIDER, _ = documents.PROVIDERS
STRANGER = keys("stranger")
COMMITTEE, SEATS = committee()
ORACLE = SEATS[0].keys.public
PLAN = documents.plan(
    terms=Terms(max_chunk_msat=10_000, max_total_msat=100_000, verify="sampled"),
    verification=Verification(policy="sampled", rate_ppm=1_000_000, share_ppm=0),
    tasks=tuple(
        Assignment(task=name, provider=one.public, price_msat=1000)
        for name, one in zip(("driver", "stage.0", "stage.1"), documents.PROVIDERS, strict=True)
    ),
)
TICKET = Ticket(request=REQUEST, salt=HASH, inputs=())
JOB = Request(REQUEST, PLAN.customer, 1, 8843, PLAN, "", HASH, (), 100_000, (), TICKET.seal())
SAMPLE = Sample(provider=PROVIDER.public, request=REQUEST, task="stage.0", chunk=1, attempt=0, root=HASH, verifiers=())


def frame(seq, value, **meta):
    data = bytes([seq % 200, value]) * 16
    return Frame("hidden.0", seq, (Array("float32", (1, 1, 8), data),), {"pos": seq, **meta})


FIRST, HONEST, OTHER = [frame(0, 1)], [frame(1, 1), frame(2, 1)], [frame(1, 2), frame(2, 2)]


class Echo:
    """A worker whose task puts out what it takes in: what it computed shows on what."""

    async def open(self, task, session, params, codings=None):
        self.pos, self.given = [], []
        return self

    async def receive(self, one):
        self.pos.append(one.meta["pos"])
        self.given.append(one)
        return [replace(one, edge="hidden.1")]

    async def close(self):
        pass


@dataclass
class Job:
    """What the upstream node and the provider keep, what was certified, and what a test changes of it."""

    folder: object
    certified: list = field(default_factory=list)
    silent: dict = field(default_factory=dict)
    """What who (node, what) says instead of showing something."""
    cuts: dict = field(default_factory=dict)
    """What who (node, what, task) shows instead of what it keeps."""
    request: Request = JOB
    manifest: Manifest = MANIFEST
    sample = SAMPLE
    committee = COMMITTEE
    patience_s = 5.0

    def __post_init__(self):
        nodes = (UPSTREAM, PROVIDER, STRANGER)
        self.spools = {one.public: Spool(self.folder / one.public[:8], 10**7) for one in nodes}
        self.holdings = {one.public: EvidenceServer(one, COMMITTEE, self.spools[one.public], None) for one in nodes}
        for holding in self.holdings.values():
            holding.keep(KeptJob(self.request, self.manifest, TICKET))
        self.worker = Echo()

    def upstream(self, frames, keys_=UPSTREAM, commits=True):
        """What the upstream node computed, keeps and commits to."""
        chunk = chunk_of(MANIFEST, frames[0].seq)
        for one in frames:
            self.spools[keys_.public].write(REQUEST, "hidden.0", 0, one)
        if commits:
            leaves = [leaf_of(MANIFEST.digest(), one) for one in frames]
            made = opening(keys_, MANIFEST, leaves, request=REQUEST, task="driver", chunk=chunk, attempt=0)
            root = ChunkRoot(request=REQUEST, task="driver", chunk=chunk, attempt=0, root=made.root())
            self.certified.append((keys_.public, root))

    def received(self, came, signed=None, by=UPSTREAM, **changes):
        """What came to the provider, and what it keeps of the upstream node's word for it."""
        for one in came:
            self.spools[PROVIDER.public].write(REQUEST, "hidden.0", 0, one)
        if signed is not None:
            place = {"request": REQUEST, "task": "driver", "edge": "hidden.0", "attempt": 0}
            chunk = chunk_of(MANIFEST, came[0].seq)
            said = FrameStatement.sign(by, **place, chunk=chunk, frames=digest_of(map(hashed, signed)))
            self.spools[PROVIDER.public].keep_sent(said.model_copy(update=changes))

    async def computed(self, last=False):
        """The frames of the sampled chunk that the task was given, as an oracle computes it."""
        inputs = await gather(
            sample=self.sample,
            request=self.request,
            manifest=self.manifest,
            final=self.final(),
            node=self,
            addresses=dict.fromkeys(self.holdings, ("x",)),
            patience_s=self.patience_s,
            last=last,
        )
        kind = SimpleNamespace(check=lambda manifest, params: params, merged=lambda manifest, task, frames: frames)
        found = await recompute(inputs, kind=kind, worker=self.worker, loaded="t")
        return [[t.sha256 for t in leaf.tensors] for leaf in found.leaves]

    def final(self):
        held = {}
        for public, root in self.certified:
            held.setdefault((public, *root.key), CertifiedRoot(public, root, "c", 8, HASH))
        return Finality(held, {}, {}, {})


@pytest.fixture
def job(tmp_path, monkeypatch):
    job = Job(tmp_path)

    async def shown(node, peer, want):
        if (peer, want.what) in node.silent:
            raise node.silent[peer, want.what]
        if (peer, want.what, want.task) in node.cuts:
            every = node.cuts[peer, want.what, want.task]
            return [(0, one) for one in every if want.first <= chunk_of(node.manifest, one.seq) <= want.last]
        return await node.holdings[peer].show(ORACLE, want)

    async def pull(node, peer, addresses, want, *, max_bytes):
        for kept in await shown(node, peer, want):
            yield kept

    async def pull_document(node, peer, addresses, want, *, max_bytes):
        return await shown(node, peer, want)

    monkeypatch.setattr(module, "pull", pull)
    monkeypatch.setattr(module, "pull_document", pull_document)
    # Every test begins with an honest first chunk.
    job.upstream(FIRST)
    job.received(FIRST, FIRST)
    yield job
    for spool in job.spools.values():
        spool.close()


def hashes(frames):
    return [[sha256 for _, _, sha256 in hashed(one).tensors] for one in frames]


async def test_what_was_sent_and_committed_to_is_what_is_computed(job):
    job.upstream(HONEST)
    job.received(HONEST, HONEST)
    assert await job.computed() == hashes(HONEST)


async def test_who_signed_other_frames_than_it_committed_to_is_named(job):
    job.upstream(HONEST)
    job.received(OTHER, OTHER)
    with pytest.raises(Equivocated) as caught:
        await job.computed()
    found = caught.value.equivocation
    assert (found.culprit, found.edge, found.chunk) == (UPSTREAM.public, "hidden.0", 1)


async def test_so_is_who_did_in_an_earlier_chunk(job):
    other = [frame(0, 2)]
    early = Job(job.folder / "early")
    early.upstream(FIRST)
    early.received(other, other)
    early.upstream(HONEST)
    early.received(HONEST, HONEST)
    with pytest.raises(Equivocated) as caught:
        await early.computed()
    assert caught.value.equivocation.chunk == 0


@pytest.mark.parametrize(
    ("signed", "by", "changes"),
    [
        (None, UPSTREAM, {}),
        (OTHER, PROVIDER, {}),
        (OTHER, PROVIDER, {"signer": UPSTREAM.public}),
        (OTHER, UPSTREAM, {"frames": HASH}),
        (OTHER, UPSTREAM, {"chunk": 2}),
        (OTHER, UPSTREAM, {"edge": "return"}),
        (OTHER, UPSTREAM, {"task": "stage.1"}),
        (HONEST, UPSTREAM, {}),
    ],
    ids=["none", "its own", "forged", "of other frames", "of another chunk", "edge", "task", "of what it hides"],
)
async def test_a_provider_without_its_producers_word_is_judged_on_what_that_committed_to(job, signed, by, changes):
    """It shows other frames than the producer committed to, and an invented statement, or none."""
    job.upstream(HONEST)
    job.received(OTHER, signed, by, **changes)
    assert await job.computed() == hashes(HONEST)


async def test_what_a_producer_signed_counts_in_the_end_if_it_never_committed_to_it(job):
    job.upstream(HONEST, commits=False)
    job.received(OTHER, OTHER)
    with pytest.raises(NotFound, match="not known yet"):
        await job.computed()
    assert await job.computed(last=True) == hashes(OTHER)


@pytest.mark.parametrize("last", [False, True])
async def test_what_a_producer_committed_to_it_must_open_whatever_it_signed(job, last):
    """Or the two would make each other pass: one computes and is paid, the other answers as it did before."""
    job.upstream(HONEST)
    job.received(OTHER, OTHER)
    job.silent = {(UPSTREAM.public, "opening"): LinkLost("x")}
    with pytest.raises(Unopened) as unopened:
        await job.computed(last=last)
    owed = unopened.value.sample
    assert (owed.provider, owed.task, owed.chunk) == (UPSTREAM.public, "driver", 0)
    job.silent = {}
    with pytest.raises(Equivocated):
        await job.computed(last=last)


async def test_with_neither_nobody_can_say(job):
    job.upstream(HONEST, commits=False)
    job.received(HONEST)
    for last in (False, True):
        with pytest.raises((NotFound, BadHash)):
            await job.computed(last=last)


async def test_a_provider_that_shows_no_statements_at_all_is_judged_as_one_that_has_none(job):
    job.upstream(HONEST)
    job.received(OTHER, OTHER)
    job.silent = {(PROVIDER.public, "sent"): NotAllowed("pull", "no")}
    assert await job.computed() == hashes(HONEST)


@pytest.mark.parametrize("what", ["sent", "frames"])
async def test_a_provider_that_is_busy_just_now_is_not_judged_as_one_that_has_none(job, what):
    job.upstream(HONEST)
    job.received(OTHER, OTHER)
    job.patience_s = 0.2
    job.silent = {(PROVIDER.public, what): Busy("pull", "2 of a peer")}
    with pytest.raises(Withheld):
        await job.computed()


async def test_the_meta_is_the_one_that_was_signed(job):
    """A commitment does not cover it, and who says a wrong position makes others' work wrong."""
    moved = [replace(one, meta={"pos": one.seq + 7}) for one in HONEST]
    job.upstream(HONEST)
    job.received(moved, moved)
    assert await job.computed() == hashes(HONEST)
    assert job.worker.pos == [0, 8, 9]


async def test_nobody_else_signs_or_commits_for_the_producer(job):
    job.upstream(HONEST)
    job.upstream(OTHER, STRANGER)
    job.received(OTHER, OTHER, by=STRANGER)
    for last in (False, True):
        assert await job.computed(last=last) == hashes(HONEST)


async def test_who_signs_something_else_to_itself_is_judged_on_what_it_committed_to(tmp_path, job):
    """The provider has both tasks of the edge: as its own producer it could only frame itself, and end the case."""
    tasks = tuple(one.model_copy(update={"provider": PROVIDER.public}) for one in PLAN.tasks[:2])
    plan = PLAN.model_copy(update={"tasks": (*tasks, PLAN.tasks[2])})
    adjacent = Job(tmp_path / "adjacent", request=replace(JOB, plan=plan))
    for frames, other in ((FIRST, [frame(0, 2)]), (HONEST, OTHER)):
        adjacent.upstream(frames, PROVIDER)
        adjacent.received(frames, other, by=PROVIDER)
    adjacent.cuts = {(PROVIDER.public, "frames", "stage.0"): [frame(0, 2), *OTHER]}
    assert await adjacent.computed() == hashes(HONEST)


async def test_a_call_needs_nothing_of_the_calls_before_it(tmp_path, job):
    """Nobody commits to a call's inputs but its own: what was never signed of another does not make this one wrong."""
    calls = MANIFEST.model_copy(update={"mode": "run"})
    called = Job(tmp_path / "called", manifest=calls)
    own = frame(1, 1)
    called.upstream(FIRST, commits=False)
    called.received(FIRST)
    called.upstream([own])
    called.received([own], [own])
    assert await called.computed() == hashes([own])


async def test_an_earlier_chunk_is_opened_as_of_the_attempt_in_which_it_was_committed_to(job):
    """The salts are by attempt, of which a root says its own: the sample's says nothing of the producer's."""
    job.sample = SAMPLE.model_copy(update={"attempt": 1})
    job.upstream(HONEST)
    job.received(HONEST)
    assert await job.computed() == hashes(HONEST)
