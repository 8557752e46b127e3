"""What is drawn of an epoch is what its certificate holds for the first time, of jobs that are to be sampled."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nodewire.errors import BadInput, NotAllowed, NotFound
from nodewire.nostr import event as events
from nodewire.oracle.court.docket import Docket, _by_turns, _origin
from nodewire.plan.epoch import Epoch
from nodewire.protocol import kinds
from nodewire.protocol.committee import commitment
from nodewire.protocol.committee.commitment import ChunkRoot, Commitment
from nodewire.protocol.committee.epoch_body import Body
from nodewire.protocol.job import request as job
from nodewire.protocol.job.plan import Assignment, Verification
from nodewire.protocol.market.snapshot import Node as Place
from nodewire.protocol.market.snapshot import Snapshot
from nodewire.verify.inquiry import Inquiry
from nodewire.wire.node import Node
from tests.oracle.courtroom import MANIFEST, PROVIDER, TASK, VERIFIER, opened, sample_of
from tests.protocol.committee.actors import committee, digest, keys
from tests.protocol.documents import CUSTOMER, plan

COMMITTEE, SEATS = committee(verify_rate_ppm=1_000_000)


def request(policy="sampled", epoch=0):
    task = Assignment(task=TASK, provider=PROVIDER.public, price_msat=1)
    verify = Verification(policy=policy, rate_ppm=1_000_000, share_ppm=0)
    sampled = plan(committee=COMMITTEE.digest(), epoch=epoch, tasks=(task,), chunk_msat=1, verification=verify)
    cited = {"manifest_address": f"{kinds.MANIFEST}:{CUSTOMER.public}:tiny", "certificate_event": digest("c")}
    tags, content = job.tags_and_content(sampled, **cited, partials=(), relays=(), ticket=digest("ticket"))
    return events.sign(CUSTOMER, kinds.INFERENCE, created_at=5, tags=tags, content=content)


DEADLINE = job.parse(request()).plan.deadline_epoch(0, COMMITTEE.epoch_ms)


def body(epoch):
    return Body(
        committee=COMMITTEE.digest(),
        epoch=epoch,
        snapshot=digest(f"snapshot/{epoch}"),
        commitments=digest("commitments"),
        inventories=tuple(sorted(digest(f"inventory/{i}") for i in range(3))),
        previous=COMMITTEE.digest(),
    )


class Stalls:
    """Market and relays with the epochs' commitments that a test lays out: {epoch: [(author, ChunkRoot) ...]}."""

    committee = COMMITTEE

    def __init__(self, requests, committed, manifest=MANIFEST):
        self.requests, self.committed, self.known = {r.id: r for r in requests}, committed, manifest
        self.later = []

    def epochs_after(self, number):
        return [Epoch(body(epoch), digest("beacon"), None, ()) for epoch in self.later if epoch > number]

    async def commitments(self, body):
        return tuple(
            commitment.parse(
                commitment.build(
                    author,
                    Commitment(committee=COMMITTEE.digest(), epoch=body.epoch, chunks=(root,)),
                    created_at=1,
                )[0]
            )
            for author, root in self.committed.get(body.epoch, ())
        )

    async def snapshot(self, sha256):
        epoch = next(n for n in self.committed if digest(f"snapshot/{n}") == sha256)
        return Snapshot(committee=COMMITTEE.digest(), epoch=epoch, nodes=(), events=())

    async def manifest(self, address, wanted=None):
        if self.known is None or self.known.digest() != wanted:
            raise NotFound("manifest", "no relay has it")
        return self.known

    async def fetch(self, filters):
        return [self.requests[id_] for f in filters for id_ in f.ids if id_ in self.requests]


def root(request, chunk=0, value="root"):
    return ChunkRoot(request=request.id, task=TASK, chunk=chunk, attempt=0, root=digest(value))


async def read(stalls, *epochs):
    docket = Docket(stalls, stalls)
    return [
        await docket.read(Epoch(body(n), digest("beacon"), next(iter(stalls.requests.values())), ())) for n in epochs
    ]


async def test_a_certified_root_is_drawn_once_and_a_second_root_for_it_never():
    asked = request()
    stalls = Stalls([asked], {1: [(PROVIDER, root(asked))], 2: [(PROVIDER, root(asked, value="second"))]})
    first, second = await read(stalls, 1, 2)
    assert [(s.provider, s.root) for s in first.samples] == [(PROVIDER.public, digest("root"))]
    assert not second.samples
    assert second.roots[(PROVIDER.public, *root(asked).key)] == digest("second")
    assert first.manifests == {asked.id: MANIFEST}
    assert first.parties[first.samples[0].key].price_msat == 1


@pytest.mark.parametrize("epochs", [(1, 2), (1, 1)], ids=["in an earlier epoch", "in the same"])
async def test_whoever_committed_to_the_same_root_is_named(epochs):
    asked, other = request(), keys("first")
    copy = root(asked)
    certified = {}
    for epoch, who in zip(epochs, (other, PROVIDER), strict=True):
        certified.setdefault(epoch, []).append((who, copy))
    drawn = (await read(Stalls([asked], certified), *sorted(certified)))[-1]
    (sample,) = drawn.samples
    ((theirs,),) = drawn.others.values()
    assert (list(drawn.others), theirs.provider, theirs.root) == ([sample.key], other.public, copy.root)


@pytest.mark.parametrize(
    ("changes", "epoch"),
    [({"policy": "none"}, 1), ({"epoch": 2}, 1), ({}, DEADLINE + 1)],
    ids=["not to be sampled", "planned later than committed", "after its deadline"],
)
async def test_other_jobs_are_not_drawn(changes, epoch):
    asked = request(**changes)
    (drawn,) = await read(Stalls([asked], {epoch: [(PROVIDER, root(asked))]}), epoch)
    assert not drawn.samples


async def test_a_root_counts_up_to_its_deadline_and_a_later_chunk_has_a_later_one():
    asked = request()
    (drawn,) = await read(Stalls([asked], {DEADLINE: [(PROVIDER, root(asked))]}), DEADLINE)
    assert [s.chunk for s in drawn.samples] == [0]
    stalls = Stalls([asked], {DEADLINE + 1: [(PROVIDER, root(asked)), (SEATS[0].keys, root(asked, 1))]})
    stalls.committed[DEADLINE + 1].append((PROVIDER, root(asked, 1)))
    (drawn,) = await read(stalls, DEADLINE + 1)
    assert {(s.provider, s.chunk) for s in drawn.samples} == {(PROVIDER.public, 1)}


async def test_a_strangers_root_and_a_missing_manifest_are_not_judged():
    asked = request()
    (drawn,) = await read(Stalls([asked], {1: [(keys("stranger"), root(asked))]}), 1)
    assert not drawn.samples
    (drawn,) = await read(Stalls([asked], {1: [(PROVIDER, root(asked))]}, manifest=None), 1)
    assert not drawn.manifests


def test_whoever_names_many_jobs_crowds_nobody_out():
    bonded, honest = keys("bonded"), keys("honest")
    flood = [(keys("flood").public, f"{i:064x}", TASK, 0, 0) for i in range(100)]
    roots = [*flood, (bonded.public, "ff" * 32, TASK, 0, 0), (honest.public, "ee" * 32, TASK, 0, 0)]
    node = Place(
        pubkey=bonded.public,
        beat=digest("beat"),
        ad=digest("ad"),
        held=(),
        bond_msat=COMMITTEE.bond_unit_msat,
        region="",
        load_ppm=0,
        coordinates=(0, 0, 0),
        epochs=1,
    )
    snapshot = Snapshot(committee=COMMITTEE.digest(), epoch=0, nodes=(node,), events=())
    found = list(_by_turns(roots, snapshot, COMMITTEE))
    assert found[0] == "ff" * 32
    assert "ee" * 32 in found[:3]
    assert len(found) == 102


# ---- openings over the wire ---------------------------------------------------------------------------------------


async def shown_by(answer, **changes):
    """What an oracle is shown by a provider's node whose holder is `answer(peer, want)`."""
    asked = request()
    stalls = Stalls([asked], {1: [(PROVIDER, root(asked))]})
    holder, oracle = Node(PROVIDER, holder=answer), Node(SEATS[0].keys)
    try:
        address = await holder.listen("127.0.0.1")
        docket = Docket(stalls, stalls)
        await docket.read(Epoch(body(1), digest("beacon"), asked, ()))
        moved_in = changes.get("moved_in", 0)
        stalls.later = [2, moved_in]

        async def snapshot(sha256):
            here = not moved_in or sha256 == digest(f"snapshot/{moved_in}")
            ads = {PROVIDER.public: SimpleNamespace(wire=(address if here else "127.0.0.1:9",))}
            return SimpleNamespace(ads=lambda pubkeys: {k: ad for k, ad in ads.items() if k in pubkeys})

        stalls.snapshot = snapshot
        inquiry = Inquiry(stalls, stalls, docket, oracle, {}, None)
        sample = sample_of(digest("root"), request=asked.id)
        return await inquiry.opening(sample, 1, changes.get("node", PROVIDER.public))
    finally:
        await oracle.close()
        await holder.close()


async def test_a_node_shows_its_opening_over_the_wire():
    theirs, asked = opened(PROVIDER), []

    async def answer(peer, want):
        asked.append((peer, want.what, want.task, want.first, want.last))
        return theirs.model_copy(update={"request": want.request}).pack()

    assert (await shown_by(answer)).leaves == theirs.leaves
    assert asked == [(SEATS[0].keys.public, "opening", TASK, 1, 1)]


async def test_who_came_back_at_another_address_is_found_there():
    theirs = opened(PROVIDER)

    async def answer(peer, want):
        return theirs.model_copy(update={"request": want.request}).pack()

    assert (await shown_by(answer, moved_in=4)).leaves == theirs.leaves


async def test_an_opening_of_another_chunk_is_refused():
    async def answer(peer, want):
        return opened(PROVIDER).pack()

    with pytest.raises(BadInput):
        await shown_by(answer)


async def test_garbage_refusals_and_unknown_nodes_are_typed_errors():
    async def garbage(peer, want):
        return b"\xc1garbage"

    async def refusal(peer, want):
        raise NotAllowed("pull", "not drawn")

    with pytest.raises(BadInput):
        await shown_by(garbage)
    with pytest.raises(NotAllowed):
        await shown_by(refusal)
    with pytest.raises(NotFound, match="ad"):
        await shown_by(refusal, node=VERIFIER.public)


async def test_an_epoch_that_is_read_late_or_again_draws_what_it_would_have_drawn_in_its_turn():
    asked = request()
    stalls = Stalls([asked], {1: [(PROVIDER, root(asked))], 2: [(PROVIDER, root(asked, value="second"))]})
    second, first, again, once_more = await read(stalls, 2, 1, 2, 1)
    assert [len(one.samples) for one in (second, first, again, once_more)] == [1, 1, 0, 1]
    assert first.samples == once_more.samples


async def test_a_request_that_was_never_read_is_not_found():
    with pytest.raises(NotFound, match="was not read"):
        await Docket(Stalls([], {}), Stalls([], {})).request(digest("never"))


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("203.0.113.7:7000", "203.0.113.7"),
        ("[2001:db8:1:2:3::4]:7000", "2001:db8:1:2::/64"),
        (f"splice:{digest('splice')}@203.0.113.7:7000", f"splice:{digest('splice')}@203.0.113.7"),
    ],
)
def test_an_address_counts_for_the_network_that_it_is_in_and_a_splice_for_itself(address, origin):
    assert _origin(address) == origin
