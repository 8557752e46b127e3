"""What came to a wallet that lists its invoices by when they were made, and not by when they were paid."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from nodewire.errors import LinkLost, TimedOut
from nodewire.pay.lightning import cursor
from nodewire.pay.lightning.wallet import Receipt, Transfer

LATE_S = 3_600
"""How long after its end a service may still tell that an invoice was paid: it may have been down meanwhile."""
_PAUSE_S, _LONGEST_S = 0.5, 30.0


@dataclass(frozen=True, slots=True)
class ListedInvoice:
    """One of the wallet's own invoices, as its list has it. Times are unix seconds."""

    transfer: Transfer
    created_at_s: int
    expires_at_s: int


InvoiceList = Callable[[int], Awaitable[Sequence[ListedInvoice]]]
"""The wallet's own invoices that were made at a moment (unix seconds) or later, oldest first, paid or not."""


async def settled(wallet: str, after: str, listed: InvoiceList, pause_s: float = _PAUSE_S) -> AsyncIterator[Receipt]:
    """Incoming payments of the wallet with this id, as `Wallet.settled` tells of them.

    A cursor is the moment before which every invoice has been told up to this receipt, or can be paid no more. So those
    younger than that may be told again. The list is asked for every `pause_s`, and more rarely while it cannot be had.

    Raises:
        BadInput: the cursor is not this wallet's.

    """
    since_s, told, wait_s = cursor.place_of(wallet, after), set[str](), pause_s
    while True:
        try:
            found = await listed(since_s)
        except (LinkLost, TimedOut):
            await asyncio.sleep(wait_s)
            wait_s = min(_LONGEST_S, 2 * wait_s)
            continue
        wait_s = pause_s
        now_s = time.time()
        open_s = [
            one.created_at_s
            for one in found
            if one.transfer.state in ("open", "pending") and now_s < one.expires_at_s + LATE_S
        ]
        since_s = min(open_s, default=max((one.created_at_s for one in found), default=since_s))
        came = [one for one in found if one.transfer.state == "settled" and one.transfer.payment_hash not in told]
        came.sort(key=lambda one: one.transfer.at_s)
        for number, listed_one in enumerate(came, 1):
            one = listed_one.transfer
            told.add(one.payment_hash)
            place_s = min((since_s, *(later.created_at_s for later in came[number:])))
            yield Receipt(cursor.at(wallet, place_s), one.payment_hash, one.preimage or "", one.amount_msat, one.at_s)
        told &= {one.transfer.payment_hash for one in found}
        await asyncio.sleep(pause_s)
