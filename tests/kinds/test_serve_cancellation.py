"""A job that is cancelled at a node says so, and leaves no session open in the worker, wherever it was."""

from __future__ import annotations

import asyncio

import pytest

from kinds.k8843 import KIND
from nodewire.errors import Busy
from nodewire.kind import Job
from tests.kinds.inprocess import Fed
from tests.protocol import documents
from tests.sessions import SessionOf

REQUEST = "ab" * 32
TASKS = ("stage.0", "stage.1")


class Desk:
    """Asked nothing here."""


class Slow:
    """A worker that waits with its answers at `at`, having done what was asked."""

    def __init__(self, at: tuple[str, str]) -> None:
        self.at, self.waits, self.goes_on = at, asyncio.Event(), asyncio.Event()
        self.sessions: set[str] = set()
        self.refuses = ""

    async def open(self, task, session, params, codings=None):
        if task == self.refuses:
            raise Busy("slots", "all are taken")
        self.sessions.add(task)
        try:
            await self._answer("open", task)
        except asyncio.CancelledError:
            self.sessions.remove(task)
            raise
        return SessionOf(self, task, session)

    async def close(self, task, session):
        await self._answer("close", task)
        self.sessions.remove(task)

    async def _answer(self, what, task):
        if (what, task) == self.at:
            self.waits.set()
            await self.goes_on.wait()


def serving(worker):
    mailbox = Fed(asyncio.Event().wait)
    return asyncio.create_task(KIND.serve(Job(REQUEST, documents.manifest(), TASKS, {}), mailbox, worker, Desk()))


async def cancelled(job):
    """Nothing but cancelled: no group of errors."""
    with pytest.raises(asyncio.CancelledError):
        await job
    assert job.cancelled()


async def test_a_job_at_work_is_cancelled_and_its_sessions_are_closed():
    worker = Slow(("", ""))
    job = serving(worker)
    while len(worker.sessions) < 2:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    job.cancel()
    await cancelled(job)
    assert not worker.sessions


@pytest.mark.parametrize("task", TASKS)
async def test_a_session_whose_opening_nobody_waited_for_is_closed(task):
    worker = Slow(("open", task))
    job = serving(worker)
    await worker.waits.wait()
    job.cancel()
    await cancelled(job)
    assert not worker.sessions


async def test_who_cancels_twice_leaves_no_session_open():
    worker = Slow(("close", "stage.0"))
    job = serving(worker)
    while len(worker.sessions) < 2:
        await asyncio.sleep(0)
    job.cancel()
    await worker.waits.wait()
    job.cancel()
    await cancelled(job)
    worker.goes_on.set()
    async with asyncio.timeout(30):
        while worker.sessions:
            await asyncio.sleep(0)


async def test_a_session_that_was_refused_is_nobody_s_to_close():
    worker = Slow(("", ""))
    worker.refuses = "stage.1"
    with pytest.raises(Busy):
        await serving(worker)
    assert not worker.sessions
