"""What came to a wallet that lists invoices by when they were made: a cursor misses none, wherever a process died."""

from __future__ import annotations

import time

import pytest

from nodewire.pay.lightning.wallet import Transfer
from nodewire.pay.wallets import history
from nodewire.pay.wallets.history import ListedInvoice

NOW_S = int(time.time())


def listed(number: int, made_s: int, settled_s: int) -> ListedInvoice:
    came = Transfer(
        payment_hash=f"{number:064x}",
        direction="in",
        state="settled",
        amount_msat=1_000,
        fee_msat=0,
        at_s=settled_s,
        preimage="00",
    )
    return ListedInvoice(came, made_s, NOW_S + 600)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
@pytest.mark.parametrize("told", [1, 2, 3])
async def test_invoices_of_several_seconds_are_all_told_after_a_death_in_between(order, told):
    book = [listed(n, NOW_S - 40 + 10 * n, NOW_S + order[n]) for n in range(4)]

    async def since(at_s: int) -> list[ListedInvoice]:
        return [one for one in book if one.created_at_s >= at_s]

    stream = history.settled("w", "", since)
    before = [await anext(stream) for _ in range(told)]
    await stream.aclose()
    again = history.settled("w", before[-1].cursor, since)
    missing = {one.transfer.payment_hash for one in book} - {one.payment_hash for one in before}
    while missing:
        missing.discard((await anext(again)).payment_hash)
    await again.aclose()
