"""A provider that holds a root back until its job is forgotten: nobody takes what is certified then for final."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from nodewire.customer.audit import verdict_watcher
from nodewire.customer.audit.verdict_watcher import VERDICT_EPOCHS, follow
from nodewire.market import Contents
from nodewire.nostr.event import Event
from nodewire.plan.epoch import Epoch
from nodewire.protocol.committee import commitment, oracle_round
from nodewire.protocol.committee import quorum_certificate as certificate
from nodewire.protocol.committee.commitment import ChunkRoot, Commitment
from nodewire.protocol.committee.quorum_certificate import Certificate
from nodewire.protocol.job import request as job
from nodewire.protocol.market.snapshot import Snapshot
from nodewire.verify.finality import final_roots
from tests.oracle.court.test_oracle_docket import COMMITTEE, DEADLINE, SEATS, body, request
from tests.oracle.courtroom import PROVIDER, TASK
from tests.protocol.committee.actors import digest

ASKED = request()
REQUEST = job.parse(ASKED)


def root(chunk: int, value: str = "root") -> ChunkRoot:
    return ChunkRoot(request=ASKED.id, task=TASK, chunk=chunk, attempt=0, root=digest(value))


class Certified:
    """A market whose certificates hold these roots of PROVIDER: {epoch: [ChunkRoot ...]}; and silent relays."""

    committee = COMMITTEE

    def __init__(self, roots: dict[int, list[ChunkRoot]]) -> None:
        self.roots = roots

    def epochs_after(self, epoch: int) -> list[Epoch]:
        return [Epoch(body(n), digest("beacon"), ASKED, ()) for n in sorted(self.roots) if n > epoch]

    async def contents(self, cited):
        return Contents((commitment.parse(self.committed(cited.epoch)),), ())

    def committed(self, epoch: int) -> Event:
        chunks = tuple(sorted(self.roots[epoch], key=lambda one: one.key))
        held = Commitment(committee=COMMITTEE.digest(), epoch=epoch, chunks=chunks)
        return commitment.build(PROVIDER, held, created_at=COMMITTEE.close_ms(epoch) // 1000)[0]

    def certificate(self, epoch: int) -> Event:
        cited, voters = body(epoch), SEATS[: COMMITTEE.quorum]
        votes = tuple(
            oracle_round.build_vote(seat.keys, cited.committee, f"epoch/{epoch}", cited.digest(), created_at=10)
            for seat in voters
        )
        return certificate.build(voters[0].keys, Certificate(cited, votes), created_at=10)

    async def fetch_all(self, filters):
        every = [make(epoch) for epoch in self.roots for make in (self.committed, self.certificate)]
        return [event for event in every if any(one.matches(event) for one in filters)]

    async def snapshot(self, sha256: str) -> Snapshot:
        epoch = next(n for n in self.roots if digest(f"snapshot/{n}") == sha256)
        return Snapshot(committee=COMMITTEE.digest(), epoch=epoch, nodes=(), events=())

    @asynccontextmanager
    async def subscribe(self, filters):
        async def never():
            await asyncio.Event().wait()
            yield None

        yield never()


@pytest.fixture(autouse=True)
def when_all_is_over(monkeypatch):
    over_s = COMMITTEE.close_ms(DEADLINE + 1 + VERDICT_EPOCHS + 2) / 1000
    monkeypatch.setattr(verdict_watcher, "time", SimpleNamespace(time=lambda: over_s))


async def followed(market: Certified, *roots: ChunkRoot):
    """What a customer knows of its job at the end, that was over in epoch DEADLINE - 1."""
    wanted = {(PROVIDER.public, one): None for one in roots}
    return await follow(REQUEST, wanted, market=market, pool=market, last_epoch=DEADLINE - 9)  # type: ignore[arg-type]


@pytest.mark.parametrize(("epoch", "final"), [(DEADLINE, 1), (DEADLINE + 1, 0)], ids=["in time", "an epoch late"])
async def test_a_late_root_is_neither_final_nor_drawn_nor_an_input(epoch, final):
    market = Certified({epoch: [root(0)]})
    found = await followed(market, root(0))
    assert (found.roots, found.certified, len(found.samples)) == (1, final, final)
    held = await final_roots(REQUEST.id, REQUEST.plan, market, market)  # type: ignore[arg-type]
    assert len(held.roots) == final


async def test_a_root_that_no_certificate_holds_and_a_second_one_are_not_final():
    market = Certified({2: [root(0, "first")], DEADLINE - 1: [root(0, "second")]})
    found = await followed(market, root(0, "second"), root(1))
    assert (found.roots, found.certified) == (2, 0)
    assert [one.root for one in found.samples] == [digest("first")]
    # nor is it an input by which who worked on the first could be made a cheater
    held = await final_roots(REQUEST.id, REQUEST.plan, market, market)  # type: ignore[arg-type]
    assert [(one.provider, one.root.root) for one in held.roots.values()] == [(PROVIDER.public, digest("first"))]
