"""A request is dated by its customer, who may lie: what others read because of it does not follow from that date."""

from __future__ import annotations

import dataclasses

import pytest

from nodewire.nostr.nips.nip01 import Filter
from nodewire.verify.finality import final_roots
from tests.customer.public_record import PROVIDERS, PublicRecord


class Record(PublicRecord):
    """Keeps what is asked for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.asked: list[Filter] = []

    async def fetch_all(self, filters, timeout_s=1.0):
        self.asked += filters
        return await super().fetch_all(filters, timeout_s)


@pytest.mark.parametrize("dated", [0, 2**40], ids=["long ago", "in the future"])
async def test_what_is_certified_of_a_job_is_looked_for_since_its_plans_epoch(dated):
    """Since 1970 that would be all that its providers ever committed to, in the memory of every oracle that judges a
    chunk of it; since tomorrow, nothing: no input of the job would be known to be certified."""
    record = Record()
    record.request = dataclasses.replace(record.request, created_at=dated)
    epoch = record.epoch_at(record.began_s) + 1
    record.certified(epoch, [record.committed(0, (0,), epoch)])
    found = await final_roots(record.request.id, record.request.plan, record, record)
    assert [one.provider for one in found.roots.values()] == [PROVIDERS[0].public]
    (since,) = {one.since for one in record.asked if one.since is not None}
    assert since == record.committee.close_ms(record.request.plan.epoch - 1) // 1000
