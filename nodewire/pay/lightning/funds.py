"""Whether a wallet holds what is about to be spent: asked before anything is bought."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nodewire.errors import PaymentFailed

if TYPE_CHECKING:
    from nodewire.pay.lightning.wallet import Wallet


class Funds:
    """The wallet is asked for its balance from the start, beside other work; `async with` gives the question up."""

    def __init__(self, wallet: Wallet) -> None:
        self._balance = asyncio.ensure_future(_balance_msat(wallet))

    async def check(self, least_msat: int) -> None:
        """Check that the wallet holds so much.

        Where nothing is to be paid, the wallet is not waited for. One that does not tell its balance is not held to
        have none.

        Raises:
            PaymentFailed: the wallet holds less; both amounts are named.
            LinkLost, TimedOut, NotAllowed: the wallet cannot be reached, or does not know the token.

        """
        if least_msat <= 0:
            return
        balance_msat = await self._balance
        if balance_msat is not None and balance_msat < least_msat:
            cost, balance = f"{least_msat / 1000:g} sat", f"{balance_msat / 1000:g} sat"
            raise PaymentFailed(
                "balance", f"the first chunk costs {cost} or more, the wallet holds {balance}: fill it up"
            )

    async def __aenter__(self) -> Funds:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._balance.cancel()
        await asyncio.gather(self._balance, return_exceptions=True)


async def _balance_msat(wallet: Wallet) -> int | None:
    return await wallet.balance_msat() if "balance" in (await wallet.info()).abilities else None
