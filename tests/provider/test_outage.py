"""A provider that cannot serve for a reason of its own offers no slot, checks the cause with back-off, comes back."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import subprocess
import sys

import pytest

from nodewire.errors import Busy, LinkLost, NodeFailed, PaymentRequired, WorkerFailed
from nodewire.pay.accounts.ledger import Ledger
from nodewire.provider import outage as outages
from nodewire.provider.admission.checks import feedback_for
from nodewire.provider.outage import FIRST_S, MOST_S, QUIET_S, Outage, disk_check, ledger_check, worker_check

FULL = NodeFailed("disk", "No space left on device")


class Machine:
    """A node whose faults and clock a test decides; `news` are the outages' begins and ends."""

    def __init__(self):
        self.fault: Exception | None = None
        self.news: list[str] = []
        self.waits: list[float] = []
        self.outage = Outage([self.check], self.changed, self.wait)
        self._turn = asyncio.Semaphore(0)

    async def check(self):
        if self.fault is not None:
            raise self.fault

    def changed(self):
        self.news.append(self.outage.cause.field if self.outage.cause else "")

    async def wait(self, event, seconds):
        self.waits.append(seconds)
        await self._turn.acquire()

    async def pass_waits(self, count):
        for _ in range(count):
            before = len(self.waits)
            self._turn.release()
            async with asyncio.timeout(60):
                while len(self.waits) == before:
                    await asyncio.sleep(0)


async def test_an_own_fault_begins_an_outage_at_once_and_the_check_ends_it():
    machine = Machine()
    outage = machine.outage
    outage.check_admission()
    outage.note(FULL)
    assert machine.news == ["disk"]
    with pytest.raises(NodeFailed, match="disk: No space left"):
        outage.check_admission()
    machine.fault = FULL
    await outage.check()
    assert machine.news == ["disk"]
    machine.fault = None
    await outage.check()
    assert machine.news == ["disk", ""]
    outage.check_admission()


async def test_the_checks_back_off_while_the_cause_lasts():
    machine = Machine()
    machine.fault = FULL
    running = asyncio.create_task(machine.outage.run())
    await asyncio.sleep(0)
    await machine.pass_waits(9)
    running.cancel()
    assert machine.waits[:4] == [QUIET_S, FIRST_S, 2 * FIRST_S, 4 * FIRST_S] and machine.waits[-1] == MOST_S
    assert machine.news == ["disk"]


@pytest.mark.parametrize(
    "error",
    [
        PaymentRequired("customer", "unpaid"),
        LinkLost("edge", "gone"),
        WorkerFailed("worker", "died"),
        NodeFailed("software", "KeyError('x')"),
        NodeFailed("spool", "it has no room for this job"),
    ],
)
async def test_an_error_of_one_job_begins_no_outage(error):
    machine = Machine()
    machine.outage.note(error)
    assert machine.news == []
    await machine.outage.check()
    assert machine.news == []


async def test_an_error_that_a_peer_reported_is_not_this_nodes():
    machine, told = Machine(), NodeFailed("disk", "full")
    told.by = "ab" * 32
    machine.outage.note(told)
    assert machine.news == []


@pytest.mark.parametrize("raised", [sqlite3.OperationalError("disk is full"), OSError(errno.ENOSPC, "full"), FULL])
async def test_a_check_that_fails_begins_an_outage_before_any_job_does(raised):
    machine = Machine()
    machine.fault = raised
    await machine.outage.check()
    assert len(machine.news) == 1 and isinstance(machine.outage.cause, NodeFailed)


async def test_a_worker_that_cannot_be_started_is_an_outage():
    async def lives():
        return

    async def dead():
        raise WorkerFailed("worker", "died while starting")

    await worker_check(lambda: [lives(), lives()])()
    with pytest.raises(WorkerFailed):
        await worker_check(lambda: [lives(), dead()])()


async def test_a_folder_without_room_fails_the_disk_check(tmp_path, monkeypatch):
    await disk_check(tmp_path)()
    assert list(tmp_path.iterdir()) == []

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(outages.os, "posix_fallocate", full)
    with pytest.raises(NodeFailed, match="No space left on device"):
        await disk_check(tmp_path)()


def test_a_file_limit_of_the_kernel_fails_the_checks_of_a_real_process(tmp_path):
    Ledger(tmp_path / "ledger.db").close()
    script = """
import asyncio, resource, sqlite3, sys
from pathlib import Path
from nodewire.errors import NodeFailed
from nodewire.pay.accounts.ledger import Ledger
from nodewire.provider.outage import disk_check, ledger_check
folder = Path(sys.argv[1])
ledger = Ledger(folder / "ledger.db")
asyncio.run(ledger_check(ledger)())
resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
for check, kind in ((disk_check(folder), NodeFailed), (ledger_check(ledger), sqlite3.OperationalError)):
    try:
        asyncio.run(check())
    except kind as error:
        print(type(error).__name__)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
asyncio.run(disk_check(folder)())
asyncio.run(ledger_check(ledger)())
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["NodeFailed", "OperationalError"], done.stderr


async def test_a_ledger_that_can_be_written_passes(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    await ledger_check(ledger)()
    ledger.close()
    Ledger(tmp_path / "ledger.db").close()  # of the same version as before


def test_the_refusal_is_busy_and_says_the_reason():
    assert feedback_for(FULL) == ("busy", "node-failed")
    assert feedback_for(Busy("slots", "none")) == ("busy", "busy")
    assert feedback_for(LinkLost("edge", "gone")) == ("error", "link-lost")
