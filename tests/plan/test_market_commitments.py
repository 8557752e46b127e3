"""What a certified body commits to is read whole, or not at all: only what is malformed is passed over."""

from __future__ import annotations

import pytest

from nodewire.errors import BadHash, LinkLost, NotFound
from nodewire.market import Market
from nodewire.nostr.event import sign
from nodewire.protocol.committee import commitment, oracle_round
from nodewire.protocol.committee.commitment import ChunkRoot, Commitment
from nodewire.protocol.committee.epoch_body import Body
from nodewire.protocol.committee.oracle_round import Inventory
from nodewire.protocol.market.snapshot import sha256
from tests.protocol.committee.actors import committee, digest, keys

COMMITTEE, SEATS = committee()
EPOCH = 7


class Stores:
    """Relays and blob stores in memory; `broken` says what a store answers for a blob."""

    def __init__(self, folder):
        self.events, self.blobs, self.broken, self.folder = {}, {}, {}, folder

    async def fetch(self, filters, timeout_s=1.0):
        return [event for event in self.events.values() if any(one.matches(event) for one in filters)]

    async def get(self, blob, max_bytes=None):
        if blob in self.broken:
            raise self.broken[blob]
        if blob not in self.blobs:
            raise NotFound("sha256", "no server has it")
        path = self.folder / blob
        path.write_bytes(self.blobs[blob])
        return path


@pytest.fixture
def stores(tmp_path):
    return Stores(tmp_path)


@pytest.fixture
def market(stores):
    return Market(stores, stores, COMMITTEE)


def committed(name, jobs):
    roots = (
        ChunkRoot(request=digest(f"{name}/{n}"), task="t", chunk=0, attempt=0, root=digest(f"{n}")) for n in range(jobs)
    )
    chunks = tuple(sorted(roots, key=lambda root: root.key))
    document = Commitment(committee=COMMITTEE.digest(), epoch=EPOCH, chunks=chunks)
    return commitment.build(keys(name), document, created_at=5)


def certified(stores, events):
    """The body of an epoch whose inventories, which relays have, list these events."""
    ids = tuple(sorted(event.id for event in events))
    said = Inventory(committee=COMMITTEE.digest(), epoch=EPOCH, beats=(), commitments=ids)
    listed = [oracle_round.build_inventory(seat.keys, said, created_at=6)[0] for seat in SEATS[:3]]
    stores.events.update((event.id, event) for event in listed)
    return Body(
        committee=COMMITTEE.digest(),
        epoch=EPOCH,
        snapshot=digest("snapshot"),
        commitments=commitment.certified_root(list(ids)),
        inventories=tuple(sorted(event.id for event in listed)),
        previous=COMMITTEE.digest(),
    )


async def test_an_epoch_is_read_when_all_events_and_blobs_are_there_and_not_before(stores, market):
    (small, _), (large, blob) = committed("small", 2), committed("large", 400)
    body = certified(stores, [small, large])
    stores.events[small.id] = small
    with pytest.raises(NotFound, match=large.id):
        await market.commitments(body)
    stores.events[large.id] = large
    with pytest.raises(NotFound, match=large.id):
        await market.commitments(body)
    stores.blobs[sha256(blob)] = blob
    found = await market.commitments(body)
    assert {one.id: len(one.commitment.chunks) for one in found} == {small.id: 2, large.id: 400}
    stores.events.clear()
    assert await market.commitments(body) == found


@pytest.mark.parametrize("error", [LinkLost("store", "gone"), BadHash("sha256", "other bytes")])
async def test_what_a_store_does_wrong_is_not_the_providers_fault(stores, market, error):
    large, blob = committed("large", 400)
    body = certified(stores, [large])
    stores.events[large.id], stores.blobs[sha256(blob)] = large, blob
    stores.broken[sha256(blob)] = error
    with pytest.raises(NotFound):
        await market.commitments(body)
    stores.broken.clear()
    assert len(await market.commitments(body)) == 1


async def test_only_what_is_malformed_is_passed_over(stores, market):
    small, _ = committed("small", 1)
    large, blob = committed("large", 400)
    tags = [[name, digest("another root") if name == "x" else value] for name, value in large.tags]
    lie = sign(keys("liar"), large.kind, created_at=5, content="", tags=tags)
    torn = sign(keys("torn"), large.kind, created_at=5, content="{", tags=small.tags)
    body = certified(stores, [small, lie, torn])
    stores.events.update((event.id, event) for event in (small, lie, torn))
    stores.blobs[sha256(blob)] = blob
    assert [one.id for one in await market.commitments(body)] == [small.id]


async def test_an_event_that_was_kept_is_not_asked_for(stores, market):
    small, _ = committed("small", 1)
    body = certified(stores, [small])
    market.keep(small)  # an oracle saw it; by now its author has deleted it
    assert [one.id for one in await market.commitments(body)] == [small.id]


async def test_a_certified_event_that_its_author_deleted_is_read_as_a_blob_with_its_id_for_an_address(stores, market):
    (small, _), (gone, _) = committed("small", 2), committed("gone", 1)
    body = certified(stores, [small, gone])
    stores.events[small.id] = small  # `gone` is no more: NIP-09
    stores.blobs[gone.id] = gone.hashed()  # as an oracle that listed it has stored it
    deleted = next(iter(body.inventories))  # by a faulty oracle, its own
    stores.blobs[deleted] = stores.events.pop(deleted).hashed()
    assert sha256(gone.hashed()) == gone.id
    found = await market.commitments(body)
    assert {one.id: one.provider for one in found} == {small.id: small.pubkey, gone.id: gone.pubkey}


async def test_an_inventory_that_lists_nothing_may_be_gone(stores, market):
    small, _ = committed("small", 2)
    body = certified(stores, [small])
    empty = Inventory(committee=COMMITTEE.digest(), epoch=EPOCH, beats=(), commitments=())
    gone, _ = oracle_round.build_inventory(SEATS[3].keys, empty, created_at=6)  # no oracle stores it for others
    body = body.model_copy(update={"inventories": tuple(sorted((*body.inventories, gone.id)))})
    stores.events[small.id] = small
    assert [one.id for one in await market.commitments(body)] == [small.id]
    for id_ in body.inventories:
        stores.events.pop(id_, None)
    with pytest.raises(NotFound, match="inventories"):
        await Market(stores, stores, COMMITTEE).commitments(body)


async def test_an_event_that_nobody_has_makes_nobody_elses_unreadable(stores, market):
    (small, _), (gone, _), (large, _) = committed("small", 2), committed("gone", 1), committed("large", 400)
    body = certified(stores, [small, gone, large])
    stores.events.update((event.id, event) for event in (small, large))  # but not what `large` cites
    held = await market.contents(body)
    assert [one.id for one in held.commitments] == [small.id]
    assert set(held.lacking) == {gone.id, large.id}
    with pytest.raises(NotFound):
        await market.commitments(body)
    stores.blobs[gone.id] = b"no event"
    assert set((await market.contents(body)).lacking) == {gone.id, large.id}
