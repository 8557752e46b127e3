"""A provider with a till and a customer with a payer on one simulated network, for the tests that trade."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from nodewire.errors import LinkLost
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.dues import Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.payer import Payer
from nodewire.pay.accounts.till import Till

JOB = "10" * 32
RELAYS = ("wss://a.example",)


@dataclass
class Relays:
    """Takes what is published, unless it is down."""

    events: list = field(default_factory=list)
    is_down: bool = False

    async def publish(self, event, relays):
        if self.is_down:
            raise LinkLost("relay", "down")
        self.events.append((event, relays))


class Market:
    def __init__(self, payee_wallet, payer_wallet, directory, now_s=time.time):
        self.provider, self.customer = Keys(b"\x02" * 32), Keys(b"\x01" * 32)
        self.payee_wallet, self.payer_wallet = payee_wallet, payer_wallet
        self.relays = Relays()
        self.provider_book, self.customer_book = Ledger(directory / "provider.db"), Ledger(directory / "customer.db")
        self.till = self.till_on(payee_wallet, now_s)
        self.payer = Payer(self.customer, payer_wallet, self.customer_book, now_s=now_s)

    def till_on(self, wallet, now_s=time.time, **options):
        """A till on a wallet, whose own relays are those that requests name."""
        own = frozenset(RELAYS)
        return Till(
            self.provider, wallet, self.provider_book, self.relays.publish, own_relays=own, now_s=now_s, **options
        )

    def key(self, chunk=0, attempt=0):
        return Key(JOB, self.provider.public, chunk, attempt)

    def deliver(self, chunk=0, amount_msat=21_000, attempt=0):
        """The provider has computed a chunk."""
        due_by_s = int(time.time()) + 60
        self.provider_book.owe(Due(self.key(chunk, attempt), self.customer.public, amount_msat, due_by_s))

    async def quote(self, request, amount_msat):
        """The till over no wire at all."""
        return await self.till.quote(request.to_json(), amount_msat)

    async def pay(self, chunk=0, amount_msat=21_000, attempt=0, fetch=None, **options):
        key = self.key(chunk, attempt)
        return await self.payer.pay(key, amount_msat, fetch or self.quote, relays=RELAYS, **options)

    async def settle(self, count):
        """The provider's wallet reports `count` payments."""
        wallet = (await self.payee_wallet.info()).id
        stream = self.payee_wallet.settled(after=self.provider_book.cursor(wallet))
        for _ in range(count):
            self.till.clear(await anext(stream), wallet)
        await stream.aclose()
        return await self.till.publish_receipts()

    def close(self):
        self.provider_book.close()
        self.customer_book.close()
