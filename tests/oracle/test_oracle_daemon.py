"""Four oracle daemons on one relay, kept in memory: epochs get certified, restarts say nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import ClassVar

import pytest

from nodewire.errors import BadConfig, NodewireError, NotAllowed
from nodewire.nostr.event import sign
from nodewire.oracle.daemon import Oracle, Readers
from nodewire.oracle.journal import KEPT_EPOCHS, Journal
from nodewire.oracle.setup import create_committee, load_committee, load_seat
from nodewire.plan.epoch import Epochs
from nodewire.protocol.committee import beacon, commitment, oracle_round, quorum_certificate
from nodewire.protocol.committee import committee as committees
from nodewire.protocol.committee.commitment import ChunkRoot, Commitment
from nodewire.protocol.market import snapshot
from tests.protocol.committee.actors import Provider, digest, keys


class Relay:
    """Stores every event, hands it to whoever subscribed, and lets a test wait for what it looks for."""

    def __init__(self):
        self.stored, self.inboxes, self.changed = {}, [], asyncio.Condition()

    async def publish(self, event):
        if event.id in self.stored:
            return
        self.stored[event.id] = event
        for filters, inbox in self.inboxes:
            if any(f.matches(event) for f in filters):
                inbox.put_nowait(event)
        async with self.changed:
            self.changed.notify_all()

    async def subscribe(self, filters):
        inbox = asyncio.Queue()
        self.inboxes.append((filters, inbox))
        for event in await self.fetch(filters):
            yield event
        while True:
            yield await inbox.get()

    async def fetch(self, filters):
        return [event for event in self.stored.values() if any(f.matches(event) for f in filters)]

    async def fetch_all(self, filters):
        return await self.fetch(filters)

    async def until(self, condition, timeout_s=20):
        async with asyncio.timeout(timeout_s), self.changed:
            await self.changed.wait_for(lambda: condition(list(self.stored.values())))


class Shelf:
    """Blobs in a folder."""

    owned: ClassVar[list[str]] = []

    def __init__(self, folder):
        self.folder = folder

    async def put(self, source, *, own=False):
        if own:
            self.owned.append(snapshot.sha256(source))
        (self.folder / snapshot.sha256(source)).write_bytes(source)

    async def get(self, blob, max_bytes):
        return self.folder / blob


class WallClock:
    def time_s(self):
        return time.time()

    def monotonic_s(self):
        return time.monotonic()


@pytest.fixture
def founded(tmp_path):
    folder = tmp_path / "committee"
    folder.mkdir()
    genesis_s = int(time.time()) - 3
    committee = create_committee(folder, name="t", f=1, genesis_s=genesis_s, epoch_ms=600, skew_ms=40, beat_ms=300)
    return committee, folder


@contextlib.asynccontextmanager
async def running(committee, folder, relay, numbers=(1, 2, 3, 4), keep=lambda event: None):
    shelf = folder / "blobs"
    shelf.mkdir(exist_ok=True)
    oracles, tasks = [], []
    for number in numbers:
        seat = load_seat(folder / f"oracle-{number}", committee)
        journal = Journal(folder / f"oracle-{number}" / "journal.db")
        oracles.append(Oracle(seat, committee, relay, Shelf(shelf), journal, WallClock(), readers=Readers(keep)))
        tasks.append(asyncio.create_task(oracles[-1].run()))
    try:
        yield oracles
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def usable(committee, events):
    epochs = Epochs(committee)
    for event in events:
        epochs.add_event(event)
    with contextlib.suppress(NodewireError):
        return epochs.latest(int(time.time() * 1000))


async def beat_on(committee, relay, provider):
    """Beats like a provider does, citing the newest certificate."""
    await relay.publish(provider.ad)
    while True:
        certificates = [quorum_certificate.parse(e) for e in relay.stored.values() if e.kind == quorum_certificate.KIND]
        last = max(certificates, key=lambda c: c.body.epoch).digest if certificates else None
        now_ms = int(time.time() * 1000)
        await relay.publish(provider.beat(committee.epoch_at(now_ms), last, created_at=now_ms // 1000))
        await asyncio.sleep(committee.beat_ms / 1000)


async def test_four_daemons_certify_a_beating_provider_and_a_restarted_one_says_nothing_twice(founded):
    committee, folder = founded
    relay, provider = Relay(), Provider("p", committee, {digest("model"): ([("driver", 1, 1_000)], 1)})
    async with running(committee, folder, relay):
        beating = asyncio.create_task(beat_on(committee, relay, provider))

        def provider_is_certified(events):
            found = usable(committee, events)
            path = folder / "blobs" / found.body.snapshot if found else None
            return path and snapshot.unpack(path.read_bytes(), found.body.snapshot).node(provider.keys.public)

        await relay.until(provider_is_certified)
    assert any(committees.parse(e) == committee for e in relay.stored.values() if e.kind == committees.KIND)

    before = usable(committee, list(relay.stored.values())).body.epoch
    async with running(committee, folder, relay):  # all of them come back, knowing only their journals

        def another_epoch(events):
            found = usable(committee, events)
            return found and found.body.epoch > before + 1

        await relay.until(another_epoch)
    beating.cancel()

    said = {}
    for event in relay.stored.values():
        assert event.kind != quorum_certificate.FAULT_KIND
        if event.kind == oracle_round.KIND and event.tag("t") != "supply":
            key = event.pubkey, event.tag("t"), event.tag("n")
            assert said.setdefault(key, event.tag("x")) == event.tag("x")
    assert all(beacon.parse(e).check(committee) is None for e in relay.stored.values() if e.kind == beacon.KIND)


async def test_three_of_four_are_enough(founded):
    committee, folder = founded
    relay = Relay()
    async with running(committee, folder, relay, numbers=(1, 2, 4)) as oracles:
        await relay.until(lambda events: usable(committee, events))
        # The one that is not there leads every fourth round, which comes to nothing.
        await relay.until(lambda _: all(oracle.figures.skipped and oracle.figures.certified for oracle in oracles))
        for oracle in oracles:
            assert oracle.figures.votes >= oracle.figures.certified
            in_time = sum(oracle.figures.certificate.counts)
            assert in_time >= oracle.figures.certified
            assert oracle.figures.certificate.total_us <= in_time * committee.epoch_ms * 1_000


async def test_a_commitments_blob_is_fetched_claimed_and_then_listed(founded):
    committee, folder = founded
    relay, kept = Relay(), []
    roots = [ChunkRoot(request=digest(f"{n}"), task="t", chunk=0, attempt=0, root=digest("r")) for n in range(400)]
    chunks = tuple(sorted(roots, key=lambda root: root.key))
    sent = {}

    async def commit():
        """In each epoch, as providers do: on a busy machine one may have no certificate."""
        while True:
            epoch = committee.epoch_at(int(time.time() * 1000)) + 1
            document = Commitment(committee=committee.digest(), epoch=epoch, chunks=chunks)
            event, blob = commitment.build(keys("p"), document, created_at=int(time.time()))
            sent[event.id] = (event, blob)
            await relay.publish(event)
            await asyncio.sleep(0.1)
            (folder / "coming").write_bytes(blob)  # at first no store has it, then it is there whole
            (folder / "coming").rename(folder / "blobs" / snapshot.sha256(blob))
            await asyncio.sleep(committee.epoch_ms / 1000)

    def certified(events):
        bodies = [quorum_certificate.parse(e).body for e in events if e.kind == quorum_certificate.KIND]
        return [one for one in sent for body in bodies if body.commitments == commitment.certified_root([one])]

    def kept_by_all(events):
        """Three are enough to certify one; the fourth, which had not fetched its blob yet, does not keep it."""
        return [one for one in certified(events) if sum(each.id == one for each in kept) >= 4]

    async with running(committee, folder, relay, keep=kept.append):
        committing = asyncio.create_task(commit())
        await relay.until(kept_by_all, timeout_s=60)
        event, blob = sent[kept_by_all(relay.stored.values())[0]]
        committing.cancel()
        bodies = [quorum_certificate.parse(e).body for e in relay.stored.values() if e.kind == quorum_certificate.KIND]
    assert [one for one in kept if one.id == event.id] == [event] * 4
    # What a body cites is stored under its own id by all who have it: relays may forget it when its author asks.
    assert Shelf.owned.count(event.id) == 4
    cited = next(b.inventories for b in bodies if b.commitments == commitment.certified_root([event.id]))
    listing = [id_ for id_ in cited if Shelf.owned.count(id_) >= committee.quorum]
    assert len(listing) > committee.f
    # One honest holder certifies: who has said its inventory before the blob was there asks for it no more.
    assert Shelf.owned.count(snapshot.sha256(blob)) > committee.f


def test_a_journal_gives_back_what_was_said_first_even_after_a_crash(tmp_path):
    path, author, c = tmp_path / "journal.db", keys("oracle"), digest("committee")
    first = oracle_round.build_vote(author, c, "epoch/7", digest("a"), created_at=1)
    second = oracle_round.build_vote(author, c, "epoch/7", digest("b"), created_at=2)
    assert Journal(path).record(c, "vote", 7, digest("a"), first) == first  # never closed: the process died here
    journal = Journal(path)
    assert journal.record(c, "vote", 7, digest("b"), second) == first
    other = oracle_round.build_vote(author, c, "epoch/8", digest("b"), created_at=2)
    assert journal.record(c, "vote", 8, digest("b"), other) == other
    assert journal.record(c, "partial", 7, digest("b"), second) == second


def test_a_journal_that_forgot_an_epoch_refuses_to_speak_in_it(tmp_path):
    journal, author, c = Journal(tmp_path / "journal.db"), keys("oracle"), digest("committee")
    vote = oracle_round.build_vote(author, c, "epoch/0", digest("a"), created_at=1)
    journal.record(c, "vote", 0, digest("a"), vote)
    journal.record(c, "vote", KEPT_EPOCHS, digest("a"), vote)
    with pytest.raises(NotAllowed):
        journal.record(c, "vote", 0, digest("b"), vote)


def test_a_founded_committee_is_read_back_and_its_secrets_are_private(founded):
    committee, folder = founded
    assert load_committee(folder / "committee.json") == committee
    for number in range(1, 5):
        seat = load_seat(folder / f"oracle-{number}", committee)
        assert committee.oracle(seat.keys.public).share_index == number
        for name in ("key", "share"):
            assert (folder / f"oracle-{number}" / name).stat().st_mode & 0o777 == 0o600
    with pytest.raises(BadConfig):
        create_committee(folder, name="t", f=1, genesis_s=0)


def test_secrets_of_another_seat_or_open_to_others_are_refused(founded):
    committee, folder = founded
    one, two = folder / "oracle-1", folder / "oracle-2"
    (one / "share").write_text((two / "share").read_text())
    with pytest.raises(BadConfig, match="not the secrets"):
        load_seat(one, committee)
    (two / "share").chmod(0o644)
    with pytest.raises(BadConfig, match="chmod"):
        load_seat(two, committee)
    (folder / "oracle-3" / "key").unlink()
    with pytest.raises(BadConfig, match="no such file"):
        load_seat(folder / "oracle-3", committee)


def test_numbers_out_of_range_found_nothing(tmp_path):
    with pytest.raises(BadConfig, match="skew_ms"):
        create_committee(tmp_path, name="t", f=0, genesis_s=0, epoch_ms=1_000, skew_ms=900)
    assert not list(tmp_path.iterdir())


async def test_what_strangers_say_shares_no_queue_with_what_oracles_say(founded):
    """A queue that is full drops its oldest, whoever said it."""
    committee, folder = founded
    relay, provider = Relay(), Provider("p", committee, {digest("model"): ([("driver", 1, 1_000)], 1)})
    async with running(committee, folder, relay):
        await relay.until(lambda events: any(event.kind == quorum_certificate.KIND for event in events))
    vote = next(e for e in relay.stored.values() if e.kind == oracle_round.KIND and e.tag("t") == "vote")
    theirs = next(event for event in relay.stored.values() if event.kind == quorum_certificate.KIND)
    copied = sign(keys("stranger"), theirs.kind, created_at=theirs.created_at, content=theirs.content, tags=theirs.tags)
    strangers = provider.beat(0, created_at=int(time.time())), copied
    for filters, _ in relay.inboxes:
        if any(f.matches(vote) for f in filters):
            assert not any(f.matches(event) for f in filters for event in strangers)
    for event in (vote, theirs, *strangers):
        assert any(f.matches(event) for filters, _ in relay.inboxes for f in filters)
