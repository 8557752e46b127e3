"""What is final is what certificates hold, whatever relays still have of the events that they certify."""

from __future__ import annotations

import pytest

from nodewire.market import Contents
from nodewire.protocol.job import feedback
from nodewire.protocol.verification.complaint import CLAIMED_EPOCHS
from nodewire.verify.finality import final_claims, final_roots
from tests.customer.public_record import PROVIDERS, TASKS, PublicRecord


class Record(PublicRecord):
    """A job whose provider 0 claimed a chunk; `gone` are commitments' ids that nobody has any more."""

    gone: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.claim = feedback.parse(self.claimed(0, 0))
        self.first = self.epoch_at(self.claim.created_at)

    def delete(self, event) -> None:
        """NIP-09: relays forget it; oracles have stored it."""
        self.events.remove(event)

    async def contents(self, body):
        certified = self.certifies[body.digest()]
        here = tuple(one for one in certified if one.id not in self.gone)
        return Contents(here, tuple(one.id for one in certified if one.id in self.gone))

    def is_final(self, found) -> bool:
        return found.claimed(self.request.plan, PROVIDERS[0].public, 0, 0, self.claim.due.root) is not None

    async def roots(self):
        return await final_roots(self.request.id, self.request.plan, self, self)

    async def claims(self):
        return await final_claims(self.request, [self.claim], CLAIMED_EPOCHS, self, self)


@pytest.mark.parametrize(("after", "final"), [(0, True), (CLAIMED_EPOCHS, True), (CLAIMED_EPOCHS + 1, False)])
async def test_a_root_is_final_though_its_author_deleted_the_event_that_committed_to_it(after, final):
    record = Record()
    event = record.committed(0, (0,), record.first + after)
    record.certified(record.first + after, [event])
    record.delete(event)
    assert not record.is_final(await record.roots())  # by what relays have there is nothing to look for
    assert record.is_final(await record.claims()) is final


async def test_one_event_that_nobody_has_makes_no_others_root_unreadable():
    record = Record()
    mine, other = record.committed(0, (0,), record.first), record.committed(1, (0,), record.first)
    record.certified(record.first, [mine, other])
    record.gone = frozenset({other.id})
    found = await record.roots()
    assert record.is_final(found)
    assert [root.provider for root in found.roots.values()] == [PROVIDERS[0].public]
    assert found.unread.keys() == {record.first}, "what else the epoch holds is not known"
    assert TASKS[0] in {root.root.task for root in found.roots.values()}


async def test_epochs_are_not_read_for_claims_that_are_final_by_what_relays_have(monkeypatch):
    record, asked = Record(), []
    record.certified(record.first, [record.committed(0, (0,), record.first)])
    record.certified(record.first + 1, [])
    read = record.contents

    async def contents(body):
        asked.append(body.epoch)
        return await read(body)

    monkeypatch.setattr(record, "contents", contents)
    assert record.is_final(await record.claims())
    assert asked == [record.first]
