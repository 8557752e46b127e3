"""What a provider shows, and to whom: oracles alone, of jobs whose customers agreed."""

import pytest

from nodewire.errors import NodewireError, NotAllowed, NotFound
from nodewire.protocol.job.chunk import Opening, leaf_of, opening
from nodewire.protocol.job.plan import Terms, Verification
from nodewire.protocol.job.request import Request, Ticket
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification import statement
from nodewire.protocol.verification.sample import Sample
from nodewire.protocol.verification.statement import FrameStatement
from nodewire.provider.evidence.server import MAX_KEPT, EvidenceServer, KeptJob
from nodewire.wire.evidence.pull import Want
from nodewire.wire.evidence.spool import Spool
from tests.protocol import documents
from tests.protocol.committee.actors import committee

HASH = "ab" * 32
REQUEST = "cd" * 32
PROVIDER, STRANGER = documents.PROVIDERS[0], documents.PROVIDERS[2]
COMMITTEE, SEATS = committee(1)
ORACLE = SEATS[0].keys.public


def kept(policy="sampled", id_=REQUEST) -> KeptJob:
    plan = documents.plan(
        terms=Terms(max_chunk_msat=10_000, max_total_msat=100_000, verify=policy),
        verification=Verification(policy=policy, rate_ppm=50_000, share_ppm=0),
    )
    request = Request(id_, plan.customer, 1, 8843, plan, "", HASH, (), 100_000, (), HASH)
    return KeptJob(request, documents.manifest(), Ticket(request=id_, salt=HASH, inputs=()))


@pytest.fixture
def spool(tmp_path):
    spool = Spool(tmp_path, 10**6)
    for seq in range(70):  # chunks 0, 1 and the first frames of 2
        frame = Frame("hidden.0", seq, (Array("float32", (1, 1, 8), bytes([seq]) * 32),), {"chunk": 0})
        spool.write(REQUEST, "hidden.0", 0, frame)
    yield spool
    spool.close()


async def granted(peer, request):
    """Nobody was drawn."""
    return ()


@pytest.fixture
def holding(spool):
    holding = EvidenceServer(PROVIDER, COMMITTEE, spool, granted)
    holding.keep(kept())
    return holding


def want(what="opening", **changes) -> Want:
    fields = {"what": what, "request": REQUEST, "task": "driver", "attempt": 0, "first": 1, "last": 1}
    return Want(**(fields | changes))


async def test_a_stranger_sees_nothing_and_so_does_a_member_of_the_job(holding):
    for peer in (STRANGER.public, documents.CUSTOMER.public, PROVIDER.public):
        for what in ("opening", "frames", "ticket", "sent"):
            with pytest.raises(NotAllowed):
                await holding.show(peer, want(what))


async def test_an_oracle_sees_nothing_of_a_job_whose_customer_did_not_agree(spool):
    holding = EvidenceServer(PROVIDER, COMMITTEE, spool, granted)
    holding.keep(kept("none"))
    with pytest.raises(NotAllowed):
        await holding.show(ORACLE, want())


async def test_an_opening_is_of_the_whole_chunk_and_opens_its_root(holding, spool):
    shown = Opening.unpack(await holding.show(ORACLE, want()))
    digest = kept().request.plan.manifest
    leaves = [leaf_of(digest, frame) for _, frame in spool.read(REQUEST, "hidden.0") if 1 <= frame.seq <= 64]
    mine = opening(PROVIDER, documents.manifest(), leaves, request=REQUEST, task="driver", chunk=1, attempt=0)
    assert shown == mine
    assert shown.root() == mine.root()


async def test_frames_are_those_of_the_chunk_on_edges_of_the_task(holding):
    frames = list(await holding.show(ORACLE, want("frames", task="stage.0", edges=("hidden.0",))))
    assert [frame.seq for _, frame in frames] == list(range(1, 65))
    with pytest.raises(NotFound):
        await holding.show(ORACLE, want("frames", task="stage.1", edges=("hidden.0",)))


async def test_statements_are_those_on_the_tasks_inputs_in_these_chunks(spool):
    stage, last = documents.PROVIDERS[1:]
    holding = EvidenceServer(stage, COMMITTEE, spool, granted)
    holding.keep(kept())
    for edge, task, keys in (("hidden.0", "driver", PROVIDER), ("return", "stage.1", last)):
        for chunk in range(3):
            spool.keep_sent(
                FrameStatement.sign(keys, request=REQUEST, task=task, edge=edge, chunk=chunk, attempt=0, frames=HASH)
            )

    async def shown(**changes):
        found = statement.unpack(await holding.show(ORACLE, want("sent", task="stage.0", **changes)))
        return [(one.edge, one.chunk) for one in found]

    assert await shown() == [("hidden.0", 1)]
    assert await shown(first=0, last=9, edges=("hidden.0",)) == [("hidden.0", n) for n in range(3)]
    assert await shown(edges=("return",)) == []
    assert await shown(first=7, last=7) == []


@pytest.mark.parametrize(
    "changes", [{"request": "ee" * 32}, {"task": "stage.9"}, {"first": 7, "last": 7}, {"task": "stage.1"}]
)
async def test_what_is_not_kept_is_said_to_be_not_found(holding, changes):
    with pytest.raises(NodewireError) as refused:
        await holding.show(ORACLE, want(**changes))
    assert refused.value.code == "not-found"


async def test_the_newest_jobs_are_kept(spool):
    holding = EvidenceServer(PROVIDER, COMMITTEE, spool, granted)
    for n in range(MAX_KEPT + 1):
        holding.keep(kept(id_=f"{n:064x}"))
    with pytest.raises(NotFound):
        await holding.show(ORACLE, want("ticket", request="00" * 32))
    assert await holding.show(ORACLE, want("ticket", request=f"{MAX_KEPT:064x}"))


@pytest.mark.parametrize("what", ["frames", "sent", "opening", "ticket"])
async def test_a_neighbour_in_the_job_sees_no_more_of_it_than_anybody(holding, what):
    """It was sent its frames when they were put out, and is sent no others."""
    for peer in documents.PROVIDERS:
        for edges in ({"edges": ("hidden.0",)}, {}):
            with pytest.raises(NotAllowed):
                await holding.show(peer.public, want(what, **edges))


async def test_a_drivers_verifier_sees_the_tokens_of_earlier_chunks_and_none_of_its_own(spool):
    """By those its own driver goes on from what was said; to those of its chunk it is to come by itself."""
    verifier = documents.PROVIDERS[1]
    for seq in range(70):
        token = Array("int64", (1,), seq.to_bytes(8, "little"))
        spool.write(REQUEST, "tokens", 0, Frame("tokens", seq, (token,), {}))
    sample = {"provider": PROVIDER.public, "request": REQUEST, "attempt": 0, "root": HASH, "chunk": 2}

    def holding_of(**changes):
        drawn = Sample(**{**sample, "task": "driver", "verifiers": (verifier.public,), **changes})

        async def granted(peer, request):
            return (drawn,) if peer == verifier.public else ()

        holding = EvidenceServer(PROVIDER, COMMITTEE, spool, granted)
        holding.keep(kept())
        return holding

    earlier = want("frames", edges=("tokens",), first=0, last=1)
    shown = list(await holding_of().show(verifier.public, earlier))
    assert [frame.seq for _, frame in shown] == list(range(65))
    for asked in (want("frames", edges=("tokens",), first=0, last=2), want("frames", edges=("hidden.0",), last=1)):
        with pytest.raises(NotAllowed):
            await holding_of().show(verifier.public, asked)
    for peer, changes in (
        (STRANGER.public, {}),
        (verifier.public, {"task": "stage.0"}),
        (verifier.public, {"chunk": 1}),
    ):
        with pytest.raises(NotAllowed):
            await holding_of(**changes).show(peer, earlier)
