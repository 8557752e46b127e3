"""An outage: a provider cannot serve for a reason of its own, says so, and comes back by itself.

While it lasts the beats offer no slot and new requests are answered `busy`. Its cause is checked again with back-off.
The same checks run while all is well, so that a full disk is found before it costs a customer a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from nodewire.core.job_task_group import typed_fault
from nodewire.errors import BadConfig, NodeFailed, NodewireError, TimedOut, WorkerFailed

if TYPE_CHECKING:
    from pathlib import Path

    from nodewire.pay.accounts.ledger import Ledger

log = logging.getLogger("nodewire.provider")

Check = Callable[[], Awaitable[None]]
"""Returns where the node can serve. Raises the reason where it cannot."""
FIRST_S, MOST_S = 1.0, 60.0
"""The wait before the first check of a cause; it doubles up to the most."""
QUIET_S = 15.0
"""Between checks while all is well."""
ROOM_BYTES = 4 * 2**20
"""A disk with less room than that counts as full."""


class Outage:
    """`cause` is the reason for which this node cannot serve now; None while it can."""

    def __init__(
        self,
        checks: Sequence[Check],
        changed: Callable[[], None],
        wait: Callable[[asyncio.Event, float], Awaitable[None]] | None = None,
    ) -> None:
        """`changed` is called whenever an outage begins or ends. `wait` waits for an event, or so many seconds."""
        self.cause: NodewireError | None = None
        self._checks = checks
        self._changed = changed
        self._wait = wait or _wait
        self._is_due = asyncio.Event()
        self._pause_s = FIRST_S

    def note(self, error: NodewireError) -> None:
        """A job ended by `error`. An error of the node itself begins an outage at once.

        An error of this software, and what one job lacks in the spool, concern one job, and a dead worker is replaced:
        these are only checked at once.
        """
        if not isinstance(error, NodeFailed) or error.by:
            return
        if type(error) is NodeFailed and error.field not in ("software", "spool"):
            self._begin(error)
        self._is_due.set()

    def check_admission(self) -> None:
        """Raises NodeFailed: this node takes no job now."""
        if self.cause is not None:
            raise NodeFailed(self.cause.field, self.cause.reason)

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            if self.cause is not None:
                await self._wait(asyncio.Event(), self._pause_s)
            else:
                await self._wait(self._is_due, QUIET_S)
            await self.check()

    async def check(self) -> None:
        """Run all checks once: an outage begins, goes on, or ends by what they find."""
        self._is_due.clear()
        try:
            for check in self._checks:
                await check()
        except Exception as raised:  # noqa: BLE001 - whatever a check raises is the outage
            error = typed_fault(raised)
            if self.cause is None:
                self._begin(error)
            else:
                self._pause_s = min(2 * self._pause_s, MOST_S)
            return
        if self.cause is not None:
            log.warning("this node can serve again, after: %s", self.cause)
            self.cause = None
            self._changed()
        else:
            self._pause_s = max(self._pause_s / 2, FIRST_S)  # a cause that comes and goes is not forgotten at once

    def _begin(self, error: NodewireError) -> None:
        if self.cause is not None:
            return
        log.error("this node cannot serve now, leaves plans, and tries again by itself: %s", error)
        self.cause = error
        self._changed()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def disk_check(folder: Path) -> Check:
    """Checks that `folder` can take a file of `ROOM_BYTES`."""

    def probe() -> None:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)

    async def check() -> None:
        try:
            await asyncio.to_thread(probe)
        except OSError as error:
            raise NodeFailed("disk", f"{folder}: {error.strerror}") from error

    return check


def ledger_check(ledger: Ledger) -> Check:
    """Checks that the ledger can be written."""

    async def check() -> None:
        ledger.check()

    return check


def worker_check(ready: Callable[[], Sequence[Awaitable[None]]]) -> Check:
    """Checks that every worker lives, or can be started again; `ready` begins to wait for each."""

    async def check() -> None:
        try:
            await asyncio.gather(*ready())
        except (BadConfig, TimedOut) as error:
            raise WorkerFailed("worker", f"{error.field}: {error.reason}") from error

    return check
