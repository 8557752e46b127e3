"""Pays and is paid by hand, from a role's wallet and by the book of its ledger."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from nodewire.errors import BadInput, LinkLost, NodewireError, NotAllowed, NotFound, PaymentFailed, TimedOut
from nodewire.pay.accounts.own_transfers import OwnTransfer, OwnTransfers
from nodewire.pay.accounts.payer import Fees
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.wallet import Transfer, Wallet, WalletInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodewire.pay.lightning.invoices import Invoice

_FEES = Fees()
_ASK_S, _LONGEST_S = 0.2, 2.0
"""Between two looks into the wallet's record: the first pause, and the longest."""


class OwnPayer:
    """Of the wallet that `info` describes."""

    def __init__(
        self,
        wallet: Wallet,
        info: WalletInfo,
        book: OwnTransfers,
        *,
        fees: Fees = _FEES,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._wallet, self._info, self._book, self._fees, self._now_s = wallet, info, book, fees, now_s

    def most_fee_msat(self, amount_msat: int) -> int:
        """The most that routing may cost on top of an amount, where the wallet keeps to it ("fee-cap")."""
        return self._fees.most(amount_msat)

    async def check_balance(self, amount_msat: int) -> None:
        """Check that the wallet has the amount. What routing may cost is the wallet's to say.

        Raises:
            PaymentFailed: it has less. Nothing is written down, so the same invoice can be paid later.
            LinkLost, TimedOut: the wallet cannot be reached.

        """
        if "balance" not in self._info.abilities:
            return
        balance_msat = await self._wallet.balance_msat()
        if balance_msat < amount_msat:
            raise PaymentFailed("balance", f"{balance_msat} msat, and {amount_msat} msat are needed: nothing was paid")

    async def look(self, one: OwnTransfer) -> OwnTransfer:
        """What the wallet's record says of a transfer, written down. It moves no money.

        Raises:
            NotAllowed: it is another wallet's.
            NotFound: the wallet's record does not have it, and it may still be paid.
            LinkLost, TimedOut: the wallet cannot be reached.

        """
        if one.wallet != self._info.id:
            raise NotAllowed("wallet", f"it is of {one.wallet[:80]}: put that wallet back to learn what became of it")
        try:
            return self._book.enter(await self._wallet.lookup(one.payment_hash, one.direction))
        except NotFound:
            # A payment would be recorded, and nobody begins to pay an invoice that has expired.
            is_over = one.direction == "out" and "lookup-out" in self._info.abilities and self._has_expired(one)
            if not is_over:
                raise
            return self._book.enter(self._failed(one, "the wallet never began it, and its invoice has expired"))

    async def pay(self, invoice: Invoice, target: str, *, timeout_s: float = 60.0) -> OwnTransfer:
        """Pay an invoice that was checked. It is in the ledger before the wallet hears of it.

        The same invoice again, after whatever became of this process, pays nothing twice.

        Raises:
            NotAllowed: another payment to `target` is pending, or this one failed before.
            BadInvoice: it leads over hops of its payee's that cost more than routing may.
            BadInput: the wallet has no preimage that proves the payment.
            what the wallet raises: it may be paid; `look` says.

        """
        if self._book.find(invoice.payment_hash, "out") is None:
            invoices.check_route(invoice, self.most_fee_msat(invoice.amount_msat))
        at_s, own = int(self._now_s()), self._info.id
        begun = OwnTransfer(
            invoice.payment_hash, "out", target, invoice.bolt11, invoice.amount_msat, own, at_s, "pending"
        )
        one = self._book.begin(begun)
        if one.state == "failed":
            raise NotAllowed("invoice", f"its payment failed before ({one.reason}): ask for another invoice")
        if one.is_under_way and one is not begun:
            with suppress(NotFound):  # never heard of: the same invoice again is the one request that cannot pay twice
                one = await self.look(one)
        return await self._send(one, timeout_s) if one.is_under_way else one

    async def receive(self, amount_msat: int, description: str, expiry_s: int) -> OwnTransfer:
        """A new invoice, written down. Raises BadInput: the wallet makes none of this amount."""
        invoice = await self._wallet.invoice(amount_msat, description=description, expiry_s=expiry_s)
        own, at_s = self._info.id, int(self._now_s())
        made = OwnTransfer(invoice.payment_hash, "in", description, invoice.bolt11, amount_msat, own, at_s, "open")
        return self._book.begin(made)

    async def arrived(self, one: OwnTransfer) -> OwnTransfer:
        """Wait until an invoice is paid, or can be paid no more. A wallet that is out of reach is asked again."""
        pause_s = _ASK_S
        while one.is_under_way:
            has_expired = self._has_expired(one)
            try:
                one = await self.look(one)
            except (LinkLost, TimedOut, NotFound):
                has_expired = False
            if has_expired:
                break
            if one.is_under_way:
                await asyncio.sleep(pause_s)
                pause_s = min(_LONGEST_S, 2 * pause_s)
        return one

    async def _send(self, one: OwnTransfer, timeout_s: float) -> OwnTransfer:
        most_fee_msat = self.most_fee_msat(one.amount_msat)
        try:
            found = await self._wallet.pay(one.bolt11, max_fee_msat=most_fee_msat, timeout_s=timeout_s)
        except NodewireError as error:
            try:
                return await self.look(one)
            except NodewireError:
                # An error of a wallet is no failure of a payment: only its record is.
                raise (NotAllowed("wallet", str(error)) if isinstance(error, BadInput) else error) from None
        return self._book.enter(found)

    def _has_expired(self, one: OwnTransfer) -> bool:
        return invoices.decode(one.bolt11).is_expired(self._now_s())

    def _failed(self, one: OwnTransfer, why: str) -> Transfer:
        now_s = int(self._now_s())
        return Transfer(one.payment_hash, one.direction, "failed", one.amount_msat, 0, None, now_s, why)
