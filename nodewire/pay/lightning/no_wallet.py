"""The wallet of who neither pays nor is paid: a swarm's members, among whom everything is free."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NoReturn

from nodewire.errors import NotAllowed, NotFound
from nodewire.pay.lightning.invoices import Invoice
from nodewire.pay.lightning.wallet import Payment, Receipt, Transfer


def _refuse() -> NoReturn:
    raise NotAllowed("wallet", "there is none here, where everything is free")


class NoWallet:
    """A Wallet that is empty, and takes nothing."""

    async def balance_msat(self) -> int:
        return 0

    async def make_invoice(self, amount_msat: int, *, description_hash: str, expiry_s: int) -> Invoice:
        _refuse()

    async def make_hold_invoice(
        self, amount_msat: int, *, payment_hash: str, description_hash: str, expiry_s: int
    ) -> Invoice:
        _refuse()

    async def settle_hold(self, preimage: str) -> None:
        _refuse()

    async def cancel_hold(self, payment_hash: str) -> None:
        _refuse()

    async def pay(self, bolt11: str, *, max_fee_msat: int, timeout_s: float = 60.0) -> Payment:
        _refuse()

    async def lookup(self, payment_hash: str) -> Transfer:
        raise NotFound("payment_hash", "there is no wallet here")

    async def settled(self, after: int = 0) -> AsyncIterator[Receipt]:
        never: tuple[Receipt, ...] = ()
        for one in never:
            yield one

    async def close(self) -> None:
        return
