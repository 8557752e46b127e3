"""What a customer of training holds open: relays, blobs, wallet and ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.market import open_market
from nodewire.pay import registry
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.payer import Payer, ZapTerms
from nodewire.pay.lightning import lnurl

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from nodewire.config import CustomerConfig
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool
    from nodewire.pay.accounts.debts import Debt, Key
    from nodewire.store.blobs import Blobs


@dataclass(frozen=True, slots=True)
class TrainingSession:
    """Open connections and files of one customer; `open_session` closes them with its stack."""

    keys: Keys
    pool: Pool
    blobs: Blobs
    payer: Payer
    ledger: Ledger
    config: CustomerConfig
    network: str
    """The wallet's, as bolt11 writes it after "ln"."""

    async def pay(self, key: Key, amount_msat: int, url: str, unit_msat: int) -> Debt:
        """Pay one part of a round's price at its provider's endpoint: by what was paid ahead there, or by a zap.

        With a zap goes what else is owed to that provider, in multiples of `unit_msat`. What is more than is owed is
        paid ahead. Raises as `Payer.pay`.
        """
        self.ledger.set_unit(key.payee, unit_msat)
        fetch = lnurl.over_lnurl(
            url,
            nostr_pubkey=key.payee,
            network=self.network,
            allow_private=self.config.private_endpoints,
        )
        relays, terms = self.config.relays, ZapTerms(by_name=True)
        paid = await self.payer.pay(key, amount_msat, fetch, relays=relays, lnurl=lnurl.encode(url), terms=terms)
        await self.ledger.flushed()
        return paid


async def open_session(stack: AsyncExitStack, config: CustomerConfig) -> TrainingSession:
    """Connect to relays and wallet, and settle with the wallet what an earlier run left on its way.

    Raises:
        BadConfig, NotFound: a file of the configuration cannot be used, or no relay knows the committee.

    """
    wallets = registry.wallet_class(config.wallet.kind)
    network = registry.network_of(config.wallet.kind, config.wallet.network)
    keys, pool, market = await open_market(stack, config)
    wallet = wallets.from_file(config.wallet.url, config.wallet.token_file)
    stack.push_async_callback(wallet.close)
    ledger = Ledger(config.ledger)
    stack.callback(ledger.close)
    payer = Payer(keys, wallet, ledger, network=network)
    await payer.recover()
    return TrainingSession(keys, pool, market.blobs, payer, ledger, config, network)
