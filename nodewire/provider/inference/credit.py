"""How far a provider works ahead of its money: chunk n + 2 begins when 0 to n are paid or within credit."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError, PaymentRequired
from nodewire.protocol.job.chunk import AHEAD

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LAST_PAYMENTS_S = 5.0
"""In which a customer pays what came of a job that broke off."""


class Credit:
    """One job's chunks as the provider's own wallet sees them."""

    def __init__(self, *, patience_s: float, waited: Callable[[float], None] = lambda took_s: None) -> None:
        """`waited`: told each wait of a chunk for money, in seconds."""
        self._patience_s = patience_s
        self._waited = waited
        self._unpaid = 0
        """The first chunk that is not paid."""
        self._paid: set[int] = set()
        self._due: set[int] = set()
        self._changed = asyncio.Condition()

    async def admit(self, chunk: int) -> None:
        """Return when `chunk` may be computed.

        Raises:
            PaymentRequired: an earlier chunk stays unpaid for the patience.

        """
        if self._may(chunk):
            return
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(self._patience_s), self._changed:
                await self._changed.wait_for(lambda: self._may(chunk))
        except TimeoutError as error:
            if self._may(chunk):  # it was paid as the time was up
                return
            raise PaymentRequired(f"chunk {chunk - AHEAD}", f"not paid within {self._patience_s:.0f} s") from error
        finally:
            self._waited(time.monotonic() - began_s)

    @property
    def is_owed(self) -> bool:
        """Whether anything that was asked for is not paid."""
        return not self._due <= self._paid

    async def due(self, chunk: int) -> None:
        async with self._changed:
            self._due.add(chunk)

    async def cover(self) -> None:
        """All that is due is within the credit that its customer has."""
        async with self._changed:
            self._paid |= self._due
            self._changed.notify_all()

    async def paid(self, chunk: int) -> None:
        """A chunk is paid, or within the credit that its customer has."""
        async with self._changed:
            self._paid.add(chunk)
            self._changed.notify_all()

    async def all_paid(self, failed: Callable[[], Awaitable[NodewireError]] | None = None) -> None:
        """Return when everything that is due is paid.

        `failed` returns when others have ended the job before its time: from then on it is waited for no longer than a
        customer takes to pay what came.

        Raises:
            PaymentRequired: it is not, for the patience.
            NodewireError: what `failed` has returned.

        """
        if failed is None:
            return await self._all_paid()
        paying, failing = asyncio.create_task(self._all_paid()), asyncio.create_task(_later(failed))
        try:
            done, _ = await asyncio.wait((paying, failing), return_when=asyncio.FIRST_COMPLETED)
            if paying not in done:
                raise failing.result()
            paying.result()
        finally:
            paying.cancel()
            failing.cancel()

    async def _all_paid(self) -> None:
        try:
            async with asyncio.timeout(self._patience_s), self._changed:
                await self._changed.wait_for(lambda: self._due <= self._paid)
        except TimeoutError as error:
            if not self.is_owed:  # it was paid as the time was up
                return
            missing = min(self._due - self._paid)
            raise PaymentRequired(f"chunk {missing}", f"not paid within {self._patience_s:.0f} s") from error

    def _may(self, chunk: int) -> bool:
        while self._unpaid in self._paid:
            self._unpaid += 1
        return chunk - AHEAD < self._unpaid


async def _later(failed: Callable[[], Awaitable[NodewireError]]) -> NodewireError:
    error = await failed()
    await asyncio.sleep(LAST_PAYMENTS_S)
    return error
