"""Which job gets a worker: whose deposit has come. Requests cost nothing, so what is not paid for holds no worker."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from nodewire.errors import Busy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from nodewire.kind import Worker

SLOT_S = 2.0
"""For so long a worker is waited for that is free in a moment, and who was asked for a deposit before goes first."""
MAX_UNPAID = 64
"""Jobs whose deposit is waited for at a time."""
WORD_S = 10.0
"""Between two words to who has paid, and waits for a worker."""


class Slots:
    """The workers of one provider. Who takes one of `free` puts it back."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.free: asyncio.Queue[Worker] = asyncio.Queue()
        for worker in workers:
            self.free.put_nowait(worker)
        self._unpaid: dict[asyncio.Timeout, float] = {}
        """Since when (monotonic), oldest first."""

    async def soon(self) -> Worker:
        """A worker that is free, or will be in a moment: it has delivered, and the next round is here already.

        Raises:
            Busy: none is.

        """
        try:
            return await asyncio.wait_for(self.free.get(), SLOT_S)
        except TimeoutError as error:
            raise Busy("concurrency", "all workers are training") from error

    async def room(self) -> None:
        """Return when somebody may be asked for a deposit: a worker is free, and not for another who was just asked.

        Who has not paid within SLOT_S is waited for, and keeps nobody else from it.

        Raises:
            Busy: all are training.

        """
        until_s = time.monotonic() + SLOT_S
        while (now_s := time.monotonic()) < until_s:
            if self.free.qsize() > sum(since_s > now_s - SLOT_S for since_s in self._unpaid.values()):
                return
            await asyncio.sleep(0.05)
        if self.free.empty():
            raise Busy("concurrency", "all workers are training")

    async def after(self, deposit: Awaitable[None], is_paid: Callable[[], bool]) -> None:
        """Return when a deposit has come. Where too many are waited for, the one that was asked for first is given up.

        Raises:
            Busy: it is that one; or what `deposit` raises.

        """
        try:
            async with asyncio.timeout(None) as limit:
                self._unpaid[limit] = time.monotonic()
                if len(self._unpaid) > MAX_UNPAID:
                    oldest = next(iter(self._unpaid))
                    del self._unpaid[oldest]
                    oldest.reschedule(0.0)
                await deposit
        except TimeoutError as error:
            if not is_paid():
                raise Busy("deposit", f"{MAX_UNPAID} others have been asked for theirs since") from error
        finally:
            self._unpaid.pop(limit, None)

    async def paid(self, say: Callable[[], Awaitable[None]]) -> Worker:
        """A worker for who has paid: the next that is free. `say` tells that it is still to come."""
        getting = asyncio.ensure_future(self.free.get())
        try:
            while not (await asyncio.wait([getting], timeout=WORD_S))[0]:
                await say()
            return getting.result()
        except BaseException:
            if not getting.cancel():
                self.free.put_nowait(getting.result())
            raise
