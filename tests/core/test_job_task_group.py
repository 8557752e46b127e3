"""The tasks that run beside a job: whatever ends one of them ends the job, by a typed fault."""

from __future__ import annotations

import asyncio
import errno
import inspect
import sqlite3

import pytest

from nodewire.core.job_task_group import JobTaskGroup
from nodewire.errors import BadFrame, LinkLost, NodeFailed


async def test_a_task_that_is_stopped_before_it_began_never_begins_and_is_closed():
    group, begun = JobTaskGroup(), []

    async def work():
        begun.append(1)

    late = work()
    group.spawn(late)
    await group.end()
    assert (begun, inspect.getcoroutinestate(late)) == ([], inspect.CORO_CLOSED)
    assert group.fault is None and not group.ended.is_set()


async def test_the_first_fault_ends_the_job_and_stays():
    group = JobTaskGroup()

    async def fail(edge):
        raise LinkLost(edge, "gone")

    await asyncio.gather(group.spawn(fail("a")), group.spawn(fail("b")))
    assert group.ended.is_set()
    assert isinstance(group.fault, LinkLost) and group.fault.field == "a"


@pytest.mark.parametrize(
    ("raised", "field", "is_logged"),
    [
        (KeyError("x"), "software", True),
        (sqlite3.OperationalError("database or disk is full"), "database", False),
        (OSError(errno.ENOSPC, "No space left on device"), "machine", False),
        (MemoryError(), "memory", False),
        (ExceptionGroup("several", [ValueError("x"), sqlite3.OperationalError("locked")]), "software", True),
    ],
)
async def test_an_untyped_exception_is_this_nodes_own_fault(raised, field, is_logged, caplog):
    group = JobTaskGroup()

    async def fail():
        raise raised

    await group.spawn(fail())
    assert group.ended.is_set()
    assert type(group.fault) is NodeFailed and group.fault.field == field
    assert ("an error of this software" in caplog.text) is is_logged


async def test_the_typed_error_of_a_group_is_the_fault():
    group = JobTaskGroup()

    async def fail():
        raise ExceptionGroup("several", [ValueError("x"), BadFrame("frames", "none")])

    await group.spawn(fail())
    assert isinstance(group.fault, BadFrame)
