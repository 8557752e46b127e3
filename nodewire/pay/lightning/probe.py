"""Tries what a wallet says that it can do, without paying anything, and says what it means where it cannot."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from nodewire.errors import BadInput, NodewireError, NotFound
from nodewire.pay.lightning.wallet import Ability, Wallet, WalletInfo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

State = Literal["works", "untried", "lacks", "fails"]
"""Tried; claimed by the wallet and not tried, since that would cost something; not there; there and wrong."""
_EXPIRY_S = 60
_LISTEN_S = 2.0

PURPOSE: dict[Ability, str] = {
    "balance": "says how much money it has",
    "invoice": "makes invoices that commit to a description's hash",
    "pay": "pays invoices",
    "fee-cap": "pays no more for routing than nodewire allows",
    "lookup-in": "says what came of an invoice that it made",
    "lookup-out": "says what came of a payment that it made",
    "failures": "says for certain that a payment was not made",
    "settled": "tells of money as it comes",
    "hold": "makes invoices that are settled later",
}
MEANING: dict[Ability, str] = {
    "balance": "nothing tells before a purchase whether the money is there",
    "invoice": "a provider cannot be paid into it: zaps need invoices that commit to a description's hash",
    "pay": "a customer cannot pay from it",
    "fee-cap": "routing may cost more than nodewire allows: the wallet's own bound holds",
    "lookup-in": "a provider cannot ask again what came of an invoice",
    "lookup-out": "a payment whose answer is lost stays open until the wallet is asked for the same invoice again",
    "failures": "after a payment that it refuses no other is tried until the invoice has expired",
    "settled": "a provider does not hear that it was paid, and takes its customers for debtors",
    "hold": "nothing: nodewire needs no hold invoices",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """`said` is the error of one that fails; `means` what follows from one that is not there."""

    ability: Ability
    state: State
    said: str = ""

    @property
    def means(self) -> str:
        return MEANING[self.ability] if self.state in ("lacks", "fails") else ""


async def probe(wallet: Wallet) -> tuple[WalletInfo, list[Finding]]:
    """What the wallet is, and how it stands with each ability. It makes one invoice of the least amount.

    Raises:
        LinkLost, TimedOut, NotAllowed: the wallet cannot be reached, or does not know its owner.

    """
    info = await wallet.info()
    tries: dict[Ability, Callable[[], Awaitable[object]]] = {
        "balance": wallet.balance_msat,
        "invoice": lambda: _invoice(wallet, info),
        "lookup-in": lambda: _lookup_in(wallet, info),
        "lookup-out": lambda: _knows_none(wallet),
        "settled": lambda: _listen(wallet),
    }
    found = []
    for ability in get_args(Ability):
        if ability not in info.abilities:
            found.append(Finding(ability, "lacks"))
        elif ability not in tries:
            found.append(Finding(ability, "untried"))
        else:
            try:
                await tries[ability]()
            except NodewireError as error:
                found.append(Finding(ability, "fails", str(error)))
            else:
                found.append(Finding(ability, "works"))
    return info, found


async def _invoice(wallet: Wallet, info: WalletInfo) -> None:
    made = await wallet.invoice(info.least_msat, description="nodewire wallet test", expiry_s=_EXPIRY_S)
    if made.network != info.network:
        raise BadInput("network", f"the wallet says {info.network}, and its invoice is of {made.network}")


async def _lookup_in(wallet: Wallet, info: WalletInfo) -> None:
    made = await wallet.invoice(info.least_msat, description="nodewire wallet test", expiry_s=_EXPIRY_S)
    found = await wallet.lookup(made.payment_hash, "in")
    if (found.state, found.amount_msat) != ("open", made.amount_msat):
        raise BadInput("lookup", f"an invoice that nobody has paid is {found.state}, of {found.amount_msat} msat")


async def _knows_none(wallet: Wallet) -> None:
    try:
        found = await wallet.lookup(os.urandom(32).hex(), "out")
    except NotFound:
        return
    raise BadInput("lookup", f"a payment that nobody made is {found.state}")


async def _listen(wallet: Wallet) -> None:
    """The stream stands for a moment, or tells of something."""
    async with aclosing(wallet.settled()) as came:  # type: ignore[type-var]  # wallets' streams are generators
        try:
            async with asyncio.timeout(_LISTEN_S):
                await anext(came)
        except TimeoutError:
            return
        except StopAsyncIteration as error:
            raise BadInput("settled", "it ends, and must not") from error
