"""A provider that holds a root back until its job is forgotten: nobody takes what is certified then for final."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from nodewire.customer import verified
from nodewire.customer.verified import VERDICT_EPOCHS, follow
from nodewire.plan.epoch import Epoch
from nodewire.protocol import commitment, job
from nodewire.protocol.commitment import ChunkRoot, Commitment
from nodewire.protocol.snapshot import Snapshot
from nodewire.verify.inquiry import Inquiry
from tests.customer.public_record import PROVIDERS, TASKS, PublicRecord
from tests.oracle.courtroom import PROVIDER, TASK
from tests.oracle.test_oracle_docket import COMMITTEE, DEADLINE, body, request
from tests.protocol_committee.actors import digest

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

    async def commitments(self, cited):
        chunks = tuple(sorted(self.roots[cited.epoch], key=lambda one: one.key))
        held = Commitment(committee=COMMITTEE.digest(), epoch=cited.epoch, chunks=chunks)
        return (commitment.parse(commitment.build(PROVIDER, held, created_at=1)[0]),)

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
    monkeypatch.setattr(verified, "time", SimpleNamespace(time=lambda: over_s))


async def followed(market: Certified, *roots: ChunkRoot):
    """What a customer knows of its job at the end, that was over in epoch DEADLINE - 1."""
    wanted = {(PROVIDER.public, one): None for one in roots}
    return await follow(REQUEST, wanted, market=market, pool=market, last_epoch=DEADLINE - 9)  # type: ignore[arg-type]


@pytest.mark.parametrize(("epoch", "final"), [(DEADLINE, 1), (DEADLINE + 1, 0)], ids=["in time", "an epoch late"])
async def test_a_late_root_is_neither_final_nor_drawn_nor_an_input(epoch, final):
    market = Certified({epoch: [root(0)]})
    found = await followed(market, root(0))
    assert (found.roots, found.certified, len(found.samples)) == (1, final, final)


async def test_a_root_that_no_certificate_holds_and_a_second_one_are_not_final():
    market = Certified({2: [root(0, "first")], DEADLINE - 1: [root(0, "second")]})
    found = await followed(market, root(0, "second"), root(1))
    assert (found.roots, found.certified) == (2, 0)
    assert [one.root for one in found.samples] == [digest("first")]


@pytest.mark.parametrize(("late", "known"), [(0, True), (1, False)], ids=["in time", "an epoch late"])
async def test_a_late_root_is_no_input_of_what_is_computed_again(late, known):
    record = PublicRecord()
    epoch = record.request.plan.deadline_epoch(0, record.committee.epoch_ms) + late
    record.certified(epoch, [record.committed(1, (0,), epoch)])
    assert (await inputs(record) != {}) == known


async def test_a_second_root_makes_nobody_who_worked_on_the_first_a_cheater():
    record = PublicRecord()
    epoch = record.epoch_at(record.began_s) + 1
    for n, said in enumerate(("", " again")):
        record.certified(epoch + n, [record.committed(1, (0,), epoch + n, said=said)])
    record.committed(1, (1,), epoch)  # no certificate holds it
    assert await inputs(record) == {(PROVIDERS[1].public, TASKS[1], 0): record.root(TASKS[1], 0).root}


async def inputs(record):
    """The roots that an input must open, as who computes a chunk again reads them."""
    inquiry = Inquiry(record, record, None, None, {}, None)  # type: ignore[arg-type]
    return await inquiry._roots(record.request)
