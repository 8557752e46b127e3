"""Payments at a wallet that does not itself see to it that the same invoice again moves nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from nodewire.errors import LinkLost, NotFound, PaymentFailed, TimedOut
from nodewire.pay.lightning.wallet import Direction, Transfer

if TYPE_CHECKING:
    from nodewire.pay.lightning.invoices import Invoice

_ASK_S, _LONGEST_S = 0.2, 2.0
"""Between two looks into the wallet's record: the first pause, and the longest."""

Lookup = Callable[[str, Direction], Awaitable[Transfer]]


class Attempts:
    """What this process tells a wallet to pay: a payment hash once, and none that the wallet's record has.

    `answer_s` is how long the wallet may take until its record has what it was told.
    """

    def __init__(self, answer_s: float) -> None:
        self._answer_s = answer_s
        self._telling: dict[str, asyncio.Task[None]] = {}

    async def pay(
        self, invoice: Invoice, lookup: Lookup, tell: Callable[[], Awaitable[None]], timeout_s: float
    ) -> Transfer:
        """The wallet's record of a payment once it has ended, or after `timeout_s`. It is told by `tell` if need be.

        What `tell` returns or raises decides nothing: the record does. `tell` goes on after this has returned.

        Raises:
            LinkLost, TimedOut: what became of it is not known.
            PaymentFailed: the invoice has expired, and the wallet does not know it.
            NodewireError: what `tell` raised, if the record then has nothing.

        """
        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + timeout_s, _ASK_S
        told: asyncio.Task[None] | None = None
        while True:
            answered = told is not None and told.done()
            try:
                found = await lookup(invoice.payment_hash, "out")
            except NotFound:
                if told is None:
                    told = self._telling.get(invoice.payment_hash)
                    if told is None and invoice.is_expired(time.time()):
                        raise PaymentFailed("invoice", "it has expired") from None
                    told = told or self._told(invoice.payment_hash, tell)
                elif answered:
                    raise _why(told) from None
                elif loop.time() >= until + self._answer_s:
                    raise TimedOut("wallet", "it has not said what became of the payment") from None
            else:
                if found.state != "pending" or loop.time() >= until:
                    return found
            if told is not None and not told.done():
                await asyncio.wait({told}, timeout=pause_s)
            else:
                await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_S, 2 * pause_s)

    async def close(self) -> None:
        telling = list(self._telling.values())
        for one in telling:
            one.cancel()
        await asyncio.gather(*telling, return_exceptions=True)

    def _told(self, payment_hash: str, tell: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        async def telling() -> None:
            await tell()

        def ended(task: asyncio.Task[None]) -> None:
            self._telling.pop(payment_hash, None)
            if not task.cancelled():
                task.exception()  # who waits for it raises it; nobody may

        task = self._telling[payment_hash] = asyncio.create_task(telling())
        task.add_done_callback(ended)
        return task


def _why(told: asyncio.Task[None]) -> BaseException:
    error = None if told.cancelled() else told.exception()
    return error or LinkLost("wallet", "it took the payment and does not know it")
