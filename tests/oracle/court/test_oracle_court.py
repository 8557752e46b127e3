"""Four oracles with their courts on one relay, kept in memory: what is committed is drawn, judged and certified."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from nodewire.errors import NotAllowed, NotFound, Withheld
from nodewire.market import Market
from nodewire.nostr import event as events
from nodewire.oracle.court.case import Recompute, SayVote
from nodewire.oracle.court.court import Court
from nodewire.oracle.court.docket import Docket
from nodewire.oracle.daemon import Oracle
from nodewire.oracle.journal import KEPT_EPOCHS, Journal
from nodewire.oracle.metrics import Committee
from nodewire.oracle.setup import create_committee, load_seat
from nodewire.protocol import kinds
from nodewire.protocol.committee import commitment, oracle_round, quorum_certificate
from nodewire.protocol.committee.commitment import ChunkRoot, Commitment
from nodewire.protocol.job import request
from nodewire.protocol.job.plan import Assignment, Verification
from nodewire.protocol.model import manifest_event
from nodewire.protocol.verification import sample as verification
from nodewire.protocol.verification import verdict
from nodewire.verify.inquiry import Overloaded
from nodewire.verify.recomputation import ComputedLeaves
from tests.oracle.courtroom import MANIFEST, TASK, leaves, opened, sample_of
from tests.oracle.test_oracle_daemon import Relay, Shelf, WallClock
from tests.protocol.committee.actors import HOLDER, Provider, digest, keys, statement
from tests.protocol.documents import CUSTOMER, plan

PRICED = [(TASK, 1, 1_000)]


class Pool(Relay):
    """The relay as the market asks it."""

    async def fetch(self, filters, timeout_s=10.0):
        return await super().fetch(filters)


class Nodes:
    """What nodes show, without a wire between."""

    can_recompute = True

    def __init__(self, openings):
        self.openings, self.computed = openings, 0

    async def opening(self, sample, epoch, node):
        if node not in self.openings:
            raise NotFound("opening", "not kept")
        return self.openings[node]

    async def frames(self, sample, epoch, opening):
        return opening.leaves

    async def inputs(self, sample, epoch, *, last, within_s):
        return sample

    async def recompute(self, inputs, *, judged, beside, within_s):
        self.computed += 1
        return ComputedLeaves(leaves())


class Market4:
    """A committee of four, a provider whose chunk is to be sampled, and the node that is drawn to verify it."""

    def __init__(self, folder, *, cheating):
        genesis_s = int(time.time()) - 3
        self.folder, self.relay = folder, Pool()
        self.shelf = Shelf(folder / "blobs")
        self.shelf.folder.mkdir()
        self.committee = create_committee(
            folder,
            name="t",
            f=1,
            genesis_s=genesis_s,
            epoch_ms=1_200,
            skew_ms=50,
            beat_ms=400,
            bond_holders=[HOLDER.public],
            verify_rate_ppm=1_000_000,
        )
        held = {MANIFEST.digest(): (PRICED, 1)}
        bonded = {
            "bond": statement(keys("provider/verifier").public, 10**7, int(time.time()) + 10**6),
            "bond_msat": 10**7,
        }
        self.provider, self.verifier = (
            Provider("p", self.committee, held),
            Provider("verifier", self.committee, held, **bonded),
        )
        address = manifest_event.build(CUSTOMER, MANIFEST, created_at=1, blob_sha256=digest("blob"), servers=())
        self.request = self.requested(manifest_event.address(address))
        self.stored = [address, self.request, bonded["bond"], self.provider.ad, self.verifier.ad]
        self.theirs = opened(self.provider.keys, 0.5 if cheating else 0.0, request=self.request.id)
        self.checked = opened(self.verifier.keys, request=self.request.id)
        self.nodes = Nodes({self.provider.keys.public: self.theirs, self.verifier.keys.public: self.checked})
        self.courts = []

    def requested(self, address):
        task = Assignment(task=TASK, provider=self.provider.keys.public, price_msat=1)
        sampled = plan(
            committee=self.committee.digest(),
            epoch=0,
            tasks=(task,),
            chunk_msat=1,
            verification=Verification(policy="sampled", rate_ppm=1_000_000, share_ppm=0),
        )
        cited = {"manifest_address": address, "certificate_event": digest("c"), "partials": (), "relays": ()}
        tags, content = request.tags_and_content(sampled, **cited, ticket=digest("ticket"))
        return events.sign(CUSTOMER, kinds.INFERENCE, created_at=5, tags=tags, content=content)

    @contextlib.asynccontextmanager
    async def running(self):
        for event in self.stored:
            await self.relay.publish(event)
        async with contextlib.AsyncExitStack() as stack:
            tasks = [asyncio.create_task(self.beat(who)) for who in (self.provider, self.verifier)]
            self.courts = []
            for number in range(1, 5):
                seat = load_seat(self.folder / f"oracle-{number}", self.committee)
                journal = Journal(self.folder / f"oracle-{number}" / "journal.db")
                stack.callback(journal.close)
                oracle = Oracle(seat, self.committee, self.relay, self.shelf, journal, WallClock())
                market = Market(self.relay, self.shelf, self.committee)
                court = Court(
                    seat.keys,
                    self.relay,
                    market,
                    Docket(market, self.relay),
                    self.nodes,
                    journal,
                    WallClock(),
                    oracle.expel,
                )
                self.courts.append((oracle, court))
                tasks += [asyncio.create_task(oracle.run()), asyncio.create_task(court.run())]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def beat(self, provider):
        while True:
            certified = [
                quorum_certificate.parse(e)
                for e in self.relay.stored.values()
                if e.kind == quorum_certificate.KIND and e.tag("n").startswith("epoch/")
            ]
            last = max(certified, key=lambda c: c.body.epoch).digest if certified else None
            now_ms = int(time.time() * 1000)
            epoch = self.committee.epoch_at(now_ms)
            await self.relay.publish(provider.beat(epoch, last, created_at=now_ms // 1000))
            await asyncio.sleep(self.committee.beat_ms / 1000)

    async def commit(self, provider, opening):
        """What a provider commits to when an epoch has just begun."""
        now_ms = int(time.time() * 1000)
        epoch = self.committee.epoch_at(now_ms) + 1
        await asyncio.sleep((self.committee.close_ms(epoch - 1) - now_ms + 50) / 1000)
        place = {"request": opening.request, "task": opening.task, "chunk": opening.chunk, "attempt": opening.attempt}
        document = Commitment(
            committee=self.committee.digest(), epoch=epoch, chunks=(ChunkRoot(**place, root=opening.root()),)
        )
        event, _ = commitment.build(provider.keys, document, created_at=int(time.time()))
        await self.relay.publish(event)

    async def committed(self, provider, opening, kind):
        """Commit, epoch by epoch as a provider does that no certificate holds, until such an event comes."""
        for _ in range(5):
            await self.commit(provider, opening)
            with contextlib.suppress(TimeoutError):
                return await self.until(kind, timeout_s=6)
        raise AssertionError(f"no {kind} came")

    async def until(self, kind, *, timeout_s=12):
        await self.relay.until(lambda found: any(self.is_of(e, kind) for e in found), timeout_s)
        return next(e for e in self.relay.stored.values() if self.is_of(e, kind))

    async def all_convict(self):
        """Wait until every oracle counts the provider among the convicted."""
        async with asyncio.timeout(60):
            while not all(self.provider.keys.public in oracle.state.convicted for oracle, _ in self.courts):
                await asyncio.sleep(0.02)

    @staticmethod
    def is_of(event, kind):
        return event.kind == kind and (kind != verdict.KIND or event.tag("n").startswith("verdict/"))


@pytest.mark.parametrize("cheating", [False, True])
async def test_a_committed_chunk_is_drawn_verified_and_judged(tmp_path, cheating):
    market = Market4(tmp_path, cheating=cheating)
    async with market.running():
        await market.until(kinds.BEACON)
        await asyncio.sleep(market.committee.epoch_ms / 1000)  # so that a snapshot has the verifier
        sampled = verification.parse(await market.committed(market.provider, market.theirs, verification.KIND))
        assert [(s.provider, s.verifiers) for s in sampled.samples] == [
            (market.provider.keys.public, (market.verifier.keys.public,))
        ]
        found = verdict.parse(await market.committed(market.verifier, market.checked, verdict.KIND))
        found.check(market.committee)
        said = found.verdict
        assert (said.outcome, said.culprit) == (("fail", market.provider.keys.public) if cheating else ("pass", ""))
        assert said.verifiers == ((market.verifier.keys.public, True),)
        judged = {said.outcome: 1}
        await market.relay.until(lambda _: all(court.figures.verdicts == judged for _, court in market.courts))
        voted = 0
        for one in market.courts:
            shown = {
                (metric.name, *s.labels.values()): s.value
                for metric in Committee(*one).collect()
                for s in metric.samples
            }
            assert shown["nodewire_oracle_verdicts", said.outcome] == 1
            assert shown["nodewire_oracle_votes", "verdict"] <= 1
            voted += shown["nodewire_oracle_votes", "verdict"]
            assert shown["nodewire_oracle_votes", "epoch"] > 1
            assert shown["nodewire_oracle_epochs", "certified"] > 1
            assert shown["nodewire_oracle_convictions",] == cheating
            assert shown["nodewire_oracle_faults",] == 0
            assert shown["nodewire_oracle_cases_open",] == 0
            assert one[0].figures.certificate.total_us > 0
        assert voted >= market.committee.quorum  # who hears of the certificate first has no vote to give
        assert market.nodes.computed or not cheating  # a tenth of the honest is computed, too
        if cheating:
            await market.all_convict()
    votes = {}
    async with market.running():  # all of them come back, knowing only their journals and what relays have
        await asyncio.sleep(2 * market.committee.epoch_ms / 1000)
        if cheating:
            await market.all_convict()
    for event in market.relay.stored.values():
        assert event.kind != quorum_certificate.FAULT_KIND
        if event.kind == oracle_round.KIND and event.tag("t") == "vote":
            assert votes.setdefault((event.pubkey, event.tag("n")), event.tag("x")) == event.tag("x")


def test_a_journal_gives_back_the_first_vote_on_a_sample_and_its_verdict(tmp_path):
    path, author, c = tmp_path / "journal.db", keys("oracle"), digest("committee")
    key = digest("sample")
    first, second = (
        oracle_round.build_vote(author, c, verdict.topic(key), digest(x), created_at=1) for x in ("one", "two")
    )
    assert Journal(path).record_vote(c, key, 7, "{}", first) == ("{}", first)  # never closed: the process died here
    journal = Journal(path)
    assert journal.record_vote(c, key, 9, "", second) == ("{}", first)
    journal.record_vote(c, digest("other"), 8 + KEPT_EPOCHS, "", second)

    with pytest.raises(NotAllowed):
        journal.record_vote(c, key, 8, "", second)
    journal.convict(c, digest("node"), first)
    journal.convict(c, digest("node"), first)
    assert journal.convicted(c) == {digest("node")}
    assert not journal.convicted(digest("another"))


@pytest.mark.parametrize(
    ("error", "said", "level"),
    [
        (
            Overloaded("computing here", "not done in the 3.0 s that were left"),
            "overloaded: timed-out: computing",
            "WARNING",
        ),
        (Withheld("inputs", "refused"), "own result: withheld: inputs: refused", "INFO"),
        (TimeoutError(), "own result: TimeoutError", "INFO"),
    ],
)
async def test_the_log_says_why_evidence_is_lacking_and_whether_this_machine_was_too_slow(
    tmp_path, caplog, error, said, level
):
    market = Market4(tmp_path, cheating=False)

    async def recompute(*given, **more):
        raise error

    market.nodes.recompute = recompute
    async with market.running():
        _, court = market.courts[0]
        epoch = market.committee.epoch_at(int(time.time() * 1000))
        with caplog.at_level("INFO", "nodewire.oracle.court"):
            sample = sample_of(market.theirs.root())
            court._do(Recompute(sample, epoch))
            await asyncio.sleep(0.05)
            found = _unsure(market.committee, sample, epoch)
            court._do(SayVote(sample.key, epoch, found.digest(), found))
    lines = [one for one in caplog.records if said in one.getMessage()]
    assert [one.levelname for one in lines] == [level, "INFO"]
    assert "found unsure, for lack of evidence" in lines[1].getMessage()


def _unsure(committee, sample, epoch):
    place = {name: getattr(sample, name) for name in ("request", "task", "chunk", "attempt", "provider", "root")}
    return verdict.Verdict(committee=committee.digest(), epoch=epoch, outcome="unsure", **place)
