"""The wallet of who neither pays nor is paid: a swarm's members, among whom everything is free."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from nodewire.errors import NotAllowed, NotFound
from nodewire.pay.lightning.invoices import REGTEST, Invoice
from nodewire.pay.lightning.wallet import Direction, Receipt, Transfer, WalletInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def _refuse() -> NoReturn:
    raise NotAllowed("wallet", "there is none here, where everything is free")


class NoWallet:
    """A Wallet that is empty, and takes nothing."""

    async def info(self) -> WalletInfo:
        return WalletInfo("none", REGTEST, 1, 0, 0, frozenset({"balance"}))

    async def balance_msat(self) -> int:
        return 0

    async def invoice(self, amount_msat: int, *, description: str, expiry_s: int) -> Invoice:
        _refuse()

    async def pay(self, bolt11: str, *, max_fee_msat: int, timeout_s: float = 60.0) -> Transfer:
        _refuse()

    async def lookup(self, payment_hash: str, direction: Direction) -> Transfer:
        raise NotFound("payment_hash", "there is no wallet here")

    async def settled(self, after: str = "") -> AsyncIterator[Receipt]:
        never: tuple[Receipt, ...] = ()
        for one in never:
            yield one

    async def close(self) -> None:
        return
