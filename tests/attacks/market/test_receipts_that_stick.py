"""A relay that is slow, or refuses somebody's receipt, must not keep other customers' payments from counting."""

from __future__ import annotations

import asyncio

from nodewire.nostr.keys import Keys
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.due_book import Quote
from nodewire.pay.accounts.dues import Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.till import Till
from nodewire.pay.accounts.zaps import build_request
from nodewire.pay.lightning.invoices import hash_of
from nodewire.pay.lightning.wallet import ABILITIES, Receipt, WalletInfo

PROVIDER, CUSTOMER, JOB = Keys(b"\x01" * 32), Keys(b"\x02" * 32), "cd" * 32


async def test_payments_count_while_receipts_wait_for_relays():
    ledger = Ledger(":memory:")
    for chunk in range(3):
        key = Key(JOB, PROVIDER.public, chunk, 0)
        ledger.owe(Due(key, CUSTOMER.public, 100, 10))
        request = build_request(CUSTOMER, key, 100, relays=(), lnurl=None, created_at=1)
        ledger.quoted(Quote(key, hash_of(f"{chunk:064x}"), request.to_json(), "lnbcrt1"))

    class Wallet:
        async def info(self):
            return WalletInfo("w", "bcrt", 1, 1, 1_000, ABILITIES)

        async def settled(self, after: str = ""):
            for chunk in range(3):
                yield Receipt(str(chunk + 1), hash_of(f"{chunk:064x}"), f"{chunk:064x}", 100, 5)
            await asyncio.sleep(60)

    async def publish(event, relays):
        await asyncio.sleep(60)

    told: asyncio.Queue[Due] = asyncio.Queue()
    till = Till(PROVIDER, Wallet(), ledger, publish)  # type: ignore[arg-type]
    running = asyncio.create_task(till.run(told.put_nowait))
    async with asyncio.timeout(30):
        assert [(await told.get()).key.chunk for _ in range(3)] == [0, 1, 2]
    running.cancel()
