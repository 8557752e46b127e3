"""Providers and customers' keys: crowding the work that was cheated out of what oracles judge, or into every draw.

Requests are anybody's to invent, plans, prices and rates included; commitments name what their author likes.
"""

from __future__ import annotations

import pytest

from nodewire.errors import BadEvent
from nodewire.nostr import event as events
from nodewire.oracle.court.arrivals import MAX_DRAWN
from nodewire.oracle.court.case import start
from nodewire.oracle.court.docket import Docket
from nodewire.oracle.court.verdict_rules import apply
from nodewire.plan.epoch import Epoch
from nodewire.plan.sample import draw
from nodewire.protocol import kinds
from nodewire.protocol.committee import commitment
from nodewire.protocol.committee.commitment import ChunkRoot, Commitment
from nodewire.protocol.job import request as job
from nodewire.protocol.job.plan import Assignment, Verification
from nodewire.protocol.market.ad import TaskOffer
from nodewire.protocol.market.snapshot import HeldTasks, Snapshot
from nodewire.protocol.market.snapshot import Node as Place
from tests.oracle.court.test_oracle_docket import body
from tests.oracle.courtroom import MANIFEST, TASK
from tests.protocol.committee.actors import committee, digest, keys
from tests.protocol.documents import plan

RATE_PPM = 50_000
COMMITTEE, SEATS = committee(verify_rate_ppm=RATE_PPM, verify_share_ppm=150_000)
CHEATER, HONEST, SYBIL = keys("cheater"), keys("honest"), keys("sybil")
BONDED = (CHEATER, HONEST, *(keys(f"other/{n}") for n in range(6)))


def request(provider, customer, *, rate_ppm=RATE_PPM, price_msat=1_000):
    task = Assignment(task=TASK, provider=provider.public, price_msat=price_msat)
    verify = Verification(policy="sampled", rate_ppm=rate_ppm, share_ppm=150_000)
    made = plan(
        committee=COMMITTEE.digest(), epoch=0, tasks=(task,), chunk_msat=price_msat, verification=verify,
        customer=customer.public, first_result_ms=600_000, next_result_ms=600_000,
    )  # fmt: skip
    cited = {"manifest_address": f"{kinds.MANIFEST}:{customer.public}:tiny", "certificate_event": digest("c")}
    tags, content = job.tags_and_content(made, **cited, partials=(), relays=(), ticket=digest("ticket"))
    return events.sign(customer, kinds.INFERENCE, created_at=5, tags=tags, content=content)


def roots(asked, chunks, attempt=0):
    return [
        ChunkRoot(request=asked.id, task=TASK, chunk=chunk, attempt=attempt, root=digest(f"{asked.id}/{chunk}"))
        for chunk in chunks
    ]


def committed(author, chunks, epoch=1):
    said = Commitment(committee=COMMITTEE.digest(), epoch=epoch, chunks=tuple(sorted(chunks, key=lambda c: c.key)))
    id_ = digest(f"{author.public}/{epoch}")
    return commitment.CommitmentEvent(id_, author.public, said.committee, epoch, "", None, said)


def snapshot(epoch=1):
    held = HeldTasks(
        manifest=MANIFEST.digest(), free=1, tasks=(TaskOffer(task=TASK, price_msat=1_000, us_per_position=1_000),)
    )
    nodes = tuple(
        Place(
            pubkey=one.public, beat=digest("beat"), ad=digest("ad"), held=(held,), bond_msat=COMMITTEE.bond_unit_msat,
            region="", load_ppm=0, coordinates=(0, 0, 0), epochs=1,
        )
        for one in sorted(BONDED, key=lambda one: one.public)
    )  # fmt: skip
    return Snapshot(committee=COMMITTEE.digest(), epoch=epoch, nodes=nodes, events=())


class Stalls:
    committee = COMMITTEE

    def __init__(self, requests, commitments):
        self.requests, self.held = {r.id: r for r in requests}, commitments

    async def commitments(self, body):
        return tuple(self.held) if body.epoch == 1 else ()

    async def snapshot(self, sha256):
        return snapshot()

    async def manifest(self, address, wanted=None):
        return MANIFEST

    async def fetch(self, filters):
        return [self.requests[id_] for f in filters for id_ in f.ids if id_ in self.requests]


async def judged(requests, commitments, beacon):
    """What an oracle really judges."""
    stalls = Stalls(requests, commitments)
    drawn = await Docket(stalls, stalls).read(Epoch(body(1), beacon, requests[0], ()))
    state, _ = apply(drawn, start(COMMITTEE, SEATS[0].keys.public, can_recompute=True))
    return [case.sample for case in state.cases.values()]


BEACON = digest("beacon")


async def test_invented_jobs_of_a_key_without_bond_displace_nothing_that_bonded_nodes_committed_to():
    """One request, no bond, nothing paid: more samples than oracles take, at the least keys of millions."""
    true = request(CHEATER, keys("customer"))
    sybils = [keys(f"sybil/{n}") for n in range(3)]
    flood = [request(sybil, keys("sybil customer")) for sybil in sybils]
    mine = committed(CHEATER, roots(true, range(2_000)))
    expected = {s.key for s in draw(COMMITTEE, BEACON, [mine], {true.id: job.parse(true)}, snapshot())}
    assert len(expected) > 50
    theirs = [committed(sybil, roots(asked, range(9_000))) for sybil, asked in zip(sybils, flood, strict=True)]
    found = await judged([true, *flood], [mine, *theirs], BEACON)
    assert len(found) == MAX_DRAWN
    assert expected <= {sample.key for sample in found}


async def test_a_plan_with_a_rate_of_its_own_is_not_drawn_at_all():
    for rate_ppm in (1_000_000, RATE_PPM + 1, 1, 0):
        flood = request(SYBIL, keys("sybil customer"), rate_ppm=rate_ppm)
        assert not await judged([flood], [committed(SYBIL, roots(flood, range(5_000)))], BEACON)


async def test_a_cheater_cannot_choose_the_places_that_are_judged_before_its_others():
    """Beyond what oracles take, the beacon chooses: who floods with chosen names gets no certainty for the rest."""
    flood = request(CHEATER, keys("own customer"))
    friends = [committed(author, roots(request(author, keys("own")), range(12_000))) for author in BONDED[2:5]]
    mine = committed(CHEATER, roots(flood, range(12_000)))
    requests = [flood, *(request(author, keys("own")) for author in BONDED[2:5])]
    found = {b: await judged(requests, [mine, *friends], b) for b in (digest("b/1"), digest("b/2"))}
    for beacon, samples in found.items():
        own = {sample.key for sample in samples if sample.provider == CHEATER.public}
        drawn = {s.key for s in draw(COMMITTEE, beacon, [mine], {flood.id: job.parse(flood)}, snapshot())}
        assert len(samples) == MAX_DRAWN
        assert len(own) == MAX_DRAWN // 4
        least = set(sorted(drawn)[: len(own)])
        assert len(own & least) < 0.6 * len(own)  # 0.43 by chance; by name it would be all of them


@pytest.mark.parametrize("attempts", [[1], [0, 1], range(100)], ids=["another", "two", "a hundred"])
def test_a_commitment_to_other_attempts_at_a_chunk_than_the_first_is_none(attempts):
    """A chunk is drawn once. Honest work in an attempt that is paid to nobody, shown an epoch before the work that is,
    would keep that from being drawn; many attempts would draw it for certain, at one share."""
    own = request(CHEATER, keys("own customer"))
    document = {"v": 1, "committee": COMMITTEE.digest(), "epoch": 1}
    chunks = [root.document() for attempt in attempts for root in roots(own, [0], attempt)]
    with pytest.raises(BadEvent, match="attempt"):
        Commitment.from_document({**document, "chunks": chunks})


def test_a_chunk_that_another_commits_to_as_well_is_drawn_no_more_often():
    """The pool insures a verifier's pay by share / rate: a chunk that is drawn for certain takes out twenty times its
    share."""
    own = request(CHEATER, keys("own customer"))
    parsed = {own.id: job.parse(own)}
    both = [committed(one, roots(own, [0])) for one in (CHEATER, BONDED[2])]
    beacons = [digest(f"beacon/{n}") for n in range(400)]
    drawn = [draw(COMMITTEE, beacon, both, parsed, snapshot()) for beacon in beacons]
    assert all(len(samples) <= 1 for samples in drawn)
    share_msat, price_msat = 150, 1_000
    assert sum(map(len, drawn)) * price_msat / len(beacons) < share_msat
    assert any(drawn)


async def test_a_chunk_that_was_certified_is_not_drawn_in_a_later_epoch():
    own = request(CHEATER, keys("own customer"))

    class Later(Stalls):
        async def commitments(self, body):
            return (committed(CHEATER, roots(own, range(300)), body.epoch),)

    stalls = Later([own], ())
    docket = Docket(stalls, stalls)
    first, second = [await docket.read(Epoch(body(n), digest(f"beacon/{n}"), own, ())) for n in (1, 2)]
    assert first.samples
    assert not second.samples
