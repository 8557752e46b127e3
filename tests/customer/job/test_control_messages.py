"""What may be charged: what the driver has signed of this job, whoever passes it on; all else changes nothing."""

from __future__ import annotations

import pytest

from nodewire.core.job_task_group import JobTaskGroup
from nodewire.customer.job import control_messages as controls
from nodewire.errors import LinkLost
from nodewire.protocol.job.chunk_close import Close
from tests.protocol import documents

DRIVER, STAGE, _ = documents.PROVIDERS
REQUEST = "ab" * 32
GONE = ("takeover", "stale", "lost", "hedge")
"""Documents of versions before this one."""


class Members:
    """A job's control documents, and then what ended it."""

    def __init__(self, *documents):
        self.documents = documents

    async def controls(self):
        for document in self.documents:
            yield STAGE.public, document
        raise LinkLost(STAGE.public, "gone")


class Payments:
    def __init__(self):
        self.closes = []

    async def closed(self, chunk, units):
        self.closes.append((chunk, units))


async def follow(*documents):
    payments, background = Payments(), JobTaskGroup()
    with pytest.raises(LinkLost):
        await controls.follow(REQUEST, Members(*documents), DRIVER.public, payments, None, background)
    assert background.fault is None
    return payments.closes


def close(keys=DRIVER, **changes):
    fields = {"request": REQUEST, "attempt": 0, "chunk": 0, "units": 1, "end": False} | changes
    return {**Close.sign(keys, **fields).control(), "job": REQUEST}


async def test_what_the_driver_signed_counts_whoever_passes_it_on():
    assert await follow(close(), close(chunk=1)) == [(0, 1), (1, 1)]


@pytest.mark.parametrize(
    "changes",
    [{"attempt": 1}, {"attempt": 7}, {"request": "cd" * 32}, {"keys": STAGE}],
    ids=["of attempt 1", "of attempt 7", "of another job", "signed by a stage"],
)
async def test_a_close_that_is_not_the_drivers_word_on_this_job_is_refused_and_those_after_it_count(changes):
    assert await follow(close(**changes), close(chunk=1)) == [(1, 1)]


@pytest.mark.parametrize("kind", GONE)
async def test_a_document_of_a_type_that_nobody_sends_any_more_changes_nothing(kind):
    assert await follow({"t": kind, "job": REQUEST, "attempt": 1}, close()) == [(0, 1)]
