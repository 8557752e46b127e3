"""The wallet of a registrar's treasury: lumps come into it over LNURL, and payouts go out of it, each once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, Self

from nodewire.errors import BadInvoice, NotAllowed
from nodewire.pay.accounts.payer import Fees
from nodewire.pay.by_hand.own_payer import OwnPayer
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.lnurl_server import Endpoint
from nodewire.pay.treasurer.lumps import LumpLedger, LumpTill

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nodewire.nostr.keys import Keys
    from nodewire.pay.accounts.receipt_outbox import Publish
    from nodewire.pay.lightning.invoices import Invoice
    from nodewire.pay.lightning.wallet import Wallet, WalletInfo

NAME = "treasury"
_FEES = Fees()
_PAY_S = 15.0
"""How long a payee waits for its payment to arrive. One that takes longer is settled later."""


class WalletCashier:
    """A `quorum.treasury.Cashier` of `wallet`, by the ledger in `file`; it signs zap receipts as `keys`.

    `await run()` until cancelled: without it no lump counts.
    """

    def __init__(
        self,
        keys: Keys,
        wallet: Wallet,
        info: WalletInfo,
        file: Path,
        publish: Publish,
        *,
        own_relays: frozenset[str] = frozenset(),
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._ledger = LumpLedger(file)
        self._till = LumpTill(keys, wallet, self._ledger, publish, own_relays=own_relays, now_s=now_s)
        self._payer = OwnPayer(wallet, info, self._ledger.own, now_s=now_s)
        self._info, self._public, self._now_s = info, keys.public, now_s
        self.lnurl = ""
        """Set when it is served."""

    @classmethod
    async def open(
        cls, keys: Keys, wallet: Wallet, file: Path, publish: Publish, *, own_relays: frozenset[str] = frozenset()
    ) -> Self:
        """Raises NotAllowed: the wallet cannot do what a treasury needs."""
        info = await wallet.info()
        missing = sorted({"invoice", "pay", "lookup-out", "settled"} - info.abilities)
        if missing:
            raise NotAllowed("wallet", f"a treasury needs what this one lacks: {', '.join(missing)}")
        if not info.has_preimages:
            raise NotAllowed("wallet", "a treasury needs one that gives preimages, which prove that a lump was paid")
        return cls(keys, wallet, info, file, publish, own_relays=own_relays)

    @property
    def unit_msat(self) -> int:
        return max(self._info.unit_msat, self._info.least_msat)

    def endpoint(self, base_url: str) -> Endpoint:
        """Where lumps are zapped, and any wallet may pay a tip."""
        endpoint = Endpoint(
            NAME, base_url, self._public, self._till.quote, self.unit_msat, self._info.most_msat, self._till.tip
        )
        self.lnurl = endpoint.pay_url
        return endpoint

    def paid_msat(self, customer: str) -> int:
        return self._ledger.balance_msat(customer)

    def most_fee_msat(self, amount_msat: int) -> int:
        return _FEES.most(amount_msat)

    def read(self, bolt11: str) -> Invoice:
        asked = invoices.decode(bolt11, network=self._info.network)
        if self._ledger.own.find(asked.payment_hash, "out") is None:
            if asked.is_expired(self._now_s()):
                raise BadInvoice("invoice", "it has expired")
            invoices.check_route(asked, self.most_fee_msat(asked.amount_msat))
        return asked

    async def pay(self, bolt11: str) -> tuple[Literal["pending", "settled", "failed"], int]:
        asked = invoices.decode(bolt11, network=self._info.network)
        known = self._ledger.own.find(asked.payment_hash, "out")
        if known is None or known.is_under_way:
            known = await self._payer.pay(asked, asked.payment_hash, timeout_s=_PAY_S)
        if known.state in ("settled", "failed"):
            return ("settled" if known.state == "settled" else "failed"), known.fee_msat
        return "pending", 0

    async def run(self) -> None:
        """Count lumps as they come, and publish their receipts, until cancelled."""
        await self._till.run()

    def close(self) -> None:
        self._ledger.close()
