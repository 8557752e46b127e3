"""A wallet of ecash at a Cashu mint, which pays and is paid over Lightning. The mint is a custodian.

The purse is an SQLite file (`pay.ecash.purse`) beside `token_file`: who has it has the money. A mint's invoice carries
no description hash and expires when the mint says. What comes has no preimage, nor has what is paid within the mint.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Self

from nodewire.errors import (
    BadConfig,
    BadInput,
    LinkLost,
    NodewireError,
    NotAllowed,
    NotFound,
    PaymentFailed,
    TimedOut,
)
from nodewire.pay.ecash.mint import Mint, MintRefused, Quote
from nodewire.pay.ecash.proofs import BlankOutput, Proof, blanks, blanks_of, exact_amounts, unblind_one
from nodewire.pay.ecash.purse import Operation, Purse, SentPayment
from nodewire.pay.lightning import cursor, invoices
from nodewire.pay.lightning.wallet import Ability, Direction, Receipt, Transfer, WalletInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nodewire.pay.lightning.invoices import Invoice

_SAT_MSAT = 1_000
_MOST_MSAT = 100_000_000_000  # 1 BTC
_LATE_S = 3_600
"""How long after its end a mint may still tell that an invoice was paid."""
_PAUSE_S, _LONGEST_S = 0.3, 30.0
_MOST_TEXT = 300
_CAN: frozenset[Ability] = frozenset({"balance", "pay", "fee-cap", "lookup-in", "lookup-out", "failures", "settled"})
_log = logging.getLogger("nodewire.pay.cashu")


class CashuWallet:
    """At the mint `url`, with the purse in `file`."""

    networks: ClassVar[tuple[str, ...]] = ("bc", "tb", "tbs", "bcrt")

    def __init__(self, url: str, file: Path | str, name: str = "", *, timeout_s: float = 10.0) -> None:
        self._mint = Mint(url, timeout_s=timeout_s)
        self._purse = Purse(file)
        self._file = file
        self._id = self._purse.named("id", name or os.urandom(16).hex())
        if self._purse.named("mint", self._mint.url) != self._mint.url:
            raise BadConfig("wallet.url", f"the purse {file} is of another mint")
        self._known: WalletInfo | None = None
        self._paying: dict[str, asyncio.Task[Transfer]] = {}
        self._minting: dict[str, asyncio.Lock] = {}
        self._spending = asyncio.Lock()
        self._is_recovered = False

    @classmethod
    def from_file(cls, url: str, token_file: Path | None) -> Self:
        """The wallet of the purse beside `token_file`, of the same name with .purse. Raises BadConfig."""
        how = "`nodewire wallet open URL --kind cashu --out FILE` makes one"
        if token_file is None:
            raise BadConfig("wallet.token_file", f"name the purse's file; {how}")
        try:
            name = token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadConfig(str(token_file), f"cannot be read; {how}") from error
        if re.fullmatch(r"purse:[0-9a-f]{32}", name) is None:
            raise BadConfig(str(token_file), f"is no purse's file; {how}")
        return cls(url, token_file.with_suffix(".purse"), name.removeprefix("purse:"))

    @classmethod
    async def open_account(cls, url: str, name: str, opening_msat: int = 0) -> tuple[Self, str]:
        if opening_msat:
            raise NotAllowed("wallet", "a mint gives no play money; pay an invoice of the wallet instead")
        name = os.urandom(16).hex()
        wallet = cls(url, ":memory:", name)
        await wallet.info()  # the mint is there, and makes invoices
        return wallet, f"purse:{name}"

    def __repr__(self) -> str:
        return f"CashuWallet({self._mint.url})"

    @property
    def mint(self) -> Mint:
        return self._mint

    @property
    def purse(self) -> Purse:
        return self._purse

    @contextlib.asynccontextmanager
    async def chosen(
        self, wanted_sat: int, *, amount_msat: int, max_fee_msat: int
    ) -> AsyncIterator[tuple[list[Proof], int]]:
        """Proofs that are just so much after the mint's fee for them, and the satoshis that swaps for them took.

        Nothing else is paid meanwhile. What goes beyond `amount_msat` counts as fee.

        Raises:
            PaymentFailed: the purse has too little, or fees are above the cap.
            LinkLost, TimedOut: the mint does not answer.

        """
        await self._recover()
        await self._collect()
        async with self._spending:
            yield await self._exactly(wanted_sat, max_fee_msat, amount_msat)

    async def info(self) -> WalletInfo:
        if self._known is None:
            network = self._purse.named("network", "")
            if not network:
                # Nothing tells the network but an invoice. Nobody gets this one.
                network = invoices.decode((await self._mint.mint_quote(1)).bolt11).network
                self._purse.put("network", network)
            self._known = WalletInfo(
                f"cashu:{self._id}", network, _SAT_MSAT, _SAT_MSAT, _MOST_MSAT, _CAN, has_preimages=False
            )
        return self._known

    async def balance_msat(self) -> int:
        await self._recover()
        await self._collect()
        return (self._purse.balance_sat + self._purse.held_sat) * _SAT_MSAT

    async def invoice(self, amount_msat: int, *, description: str, expiry_s: int) -> Invoice:
        """As the mint makes it: with the description as text, if it is short, and with the mint's own expiry."""
        if amount_msat % _SAT_MSAT or not 0 < amount_msat <= _MOST_MSAT:
            raise BadInput("amount_msat", f"{amount_msat}: a mint takes whole satoshis, from 1 to {_MOST_MSAT // 1000}")
        if not 0 < expiry_s <= invoices.MAX_EXPIRY_S:
            raise BadInput("expiry_s", f"{expiry_s}, at most a year")
        amount_sat = amount_msat // _SAT_MSAT
        text = description if len(description) <= _MOST_TEXT else ""
        quote = await self._mint.mint_quote(amount_sat, text)
        made = invoices.decode(quote.bolt11, network=(await self.info()).network)
        if made.amount_msat != amount_msat:
            raise LinkLost("mint", f"it made an invoice of {made.amount_msat} msat for {amount_msat} msat")
        with self._purse.transaction():
            self._purse.add_invoice(made.payment_hash, quote.id, quote.bolt11, amount_sat, made.expires_at_s)
        return made

    # Paying

    async def pay(self, bolt11: str, *, max_fee_msat: int, timeout_s: float = 60.0) -> Transfer:
        invoice = invoices.decode(bolt11, network=(await self.info()).network)
        task = self._paying.get(invoice.payment_hash)
        if task is None:
            task = asyncio.create_task(self._paid(invoice, max_fee_msat))
            self._paying[invoice.payment_hash] = task
            task.add_done_callback(lambda _: self._paying.pop(invoice.payment_hash, None))
        await asyncio.wait({task}, timeout=timeout_s)
        if task.done():
            return task.result()
        return await self._told(invoice.payment_hash)

    async def _told(self, payment_hash: str) -> Transfer:
        try:
            return transfer_of(self._purse.payment(payment_hash))
        except NotFound:
            raise TimedOut("mint", "it has not made a quote for the payment; ask again") from None

    async def _paid(self, invoice: Invoice, max_fee_msat: int) -> Transfer:
        await self._recover()
        try:
            known = self._purse.payment(invoice.payment_hash)
        except NotFound:
            await self._collect()
            async with self._spending:
                begun = await self._begun(invoice, max_fee_msat)
            if isinstance(begun, SentPayment):
                return transfer_of(begun)
            return await self._melt(invoice.payment_hash, begun)
        return transfer_of(known if known.state != "pending" else await self._resolved(known))

    async def _begun(self, invoice: Invoice, max_fee_msat: int) -> int | SentPayment:
        """The number of the melt, on disk; or the payment as it failed, or as another process began it."""
        amount_msat, now_s = invoice.amount_msat, int(time.time())
        blank = SentPayment(invoice.payment_hash, "", amount_msat, "failed", 0, None, now_s, "")
        if invoice.is_expired(time.time()):
            return self._kept(replace(blank, reason="the invoice has expired"))
        try:
            quote = await self._mint.melt_quote(invoice.bolt11)
        except MintRefused as error:
            return self._kept(replace(blank, reason=f"the mint {error.reason}"))
        if quote.state != "UNPAID":
            return self._kept(replace(blank, reason="the mint has it as paid by another"))
        if quote.amount_sat * _SAT_MSAT - amount_msat not in range(_SAT_MSAT):
            raise LinkLost("mint", f"it asks {quote.amount_sat} sat for an invoice of {amount_msat} msat")
        keyset = await self._mint.active()
        try:
            inputs, swapped_sat = await self._exactly(quote.amount_sat + quote.fee_sat, max_fee_msat, amount_msat)
        except PaymentFailed as error:
            return self._kept(replace(blank, reason=error.reason))
        change = _blank_change(quote.fee_sat, keyset.id)
        with self._purse.transaction():
            payment = replace(blank, state="pending", quote=quote.id, fee_msat=swapped_sat * _SAT_MSAT)
            if not self._purse.add_payment(payment):
                return self._purse.payment(invoice.payment_hash)
            return self._purse.begin("melt", inputs, change, quote.id)

    def _kept(self, payment: SentPayment) -> SentPayment:
        """The payment as it then stands: what another process began before stands."""
        with self._purse.transaction():
            self._purse.add_payment(payment)
            return self._purse.payment(payment.payment_hash)

    async def _exactly(self, wanted_sat: int, max_fee_msat: int, amount_msat: int) -> tuple[list[Proof], int]:
        """Proofs of the purse that, less what the mint takes for them, are just so much; swapped if there are none.

        With them what the mint took for swaps, in satoshis.

        Raises:
            PaymentFailed: the purse has too little, or fees are above the cap.

        """
        chosen = await self._chosen(wanted_sat)
        total_sat, fee_sat = sum(one.amount_sat for one in chosen), await self._mint.fee_sat(chosen)
        if total_sat - fee_sat == wanted_sat:
            _check_fee(total_sat * _SAT_MSAT - amount_msat, max_fee_msat)
            return chosen, 0
        keyset = await self._mint.active()
        amounts_sat = exact_amounts(wanted_sat, keyset.fee_ppk)
        if not amounts_sat:
            raise PaymentFailed("mint", f"its fee of {keyset.fee_ppk} thousandths a proof lets no sum be exact")
        keep_sat = sum(amounts_sat)
        if total_sat - fee_sat < keep_sat:
            chosen = self._purse.free()
            total_sat, fee_sat = sum(one.amount_sat for one in chosen), await self._mint.fee_sat(chosen)
        rest_sat = total_sat - fee_sat - keep_sat
        if rest_sat < 0:
            raise PaymentFailed("wallet", f"{total_sat} sat are there, {keep_sat + fee_sat} sat are needed")
        _check_fee((keep_sat + fee_sat) * _SAT_MSAT - amount_msat, max_fee_msat)
        kept = blanks_of(amounts_sat, keyset.id)
        with self._purse.transaction():
            number = self._purse.begin("swap", chosen, [*kept, *blanks(rest_sat, keyset.id)])
        await self._swap(self._purse.operation(number))
        secrets = {one.secret for one in kept}
        chosen = [one for one in self._purse.free() if one.secret in secrets]
        if len(chosen) < len(kept):
            raise PaymentFailed("wallet", "another payment takes this money; ask again")
        return chosen, fee_sat

    async def _chosen(self, wanted_sat: int) -> list[Proof]:
        """Proofs, the largest that fit first, that come to so much after fees, or to more by one proof."""
        free, chosen, left_sat = self._purse.free(), list[Proof](), wanted_sat
        for one in free:
            if one.amount_sat <= left_sat:
                chosen.append(one)
                left_sat = wanted_sat + await self._mint.fee_sat(chosen) - sum(each.amount_sat for each in chosen)
        rest = [one for one in reversed(free) if one not in chosen]
        while left_sat > 0 and rest:
            chosen.append(rest.pop(0))
            left_sat = wanted_sat + await self._mint.fee_sat(chosen) - sum(each.amount_sat for each in chosen)
        if left_sat > 0:
            raise PaymentFailed("wallet", f"{self._purse.balance_sat} sat are there, {wanted_sat} sat are needed")
        return chosen

    async def _melt(self, payment_hash: str, number: int) -> Transfer:
        """Ask the mint to pay, and write down what became of it."""
        asked = self._purse.operation(number)
        payment = self._purse.payment(payment_hash)
        try:
            said = await self._mint.melt(asked.quote, [one.as_input() for one in asked.inputs], asked.outputs)
        except NodewireError:
            return transfer_of(await self._resolved(payment))
        if said.state == "PAID":
            return transfer_of(await self._settled(payment, asked, said))
        return transfer_of(payment if said.state == "PENDING" else await self._resolved(payment))

    async def _resolved(self, payment: SentPayment) -> SentPayment:
        """What became of a pending payment, by the mint's record; pending, too, if the mint does not answer.

        One that the mint has not paid and is not about to pay is taken back: its inputs are swapped for new ones. So it
        cannot be paid any more, whatever request is still on its way.
        """
        found = self._purse.operations("melt", payment.quote)
        if not found:
            return self._purse.payment(payment.payment_hash)
        (asked,) = found
        try:
            said = await self._mint.melt_state(asked.quote)
            if said.state == "PAID":
                return await self._settled(payment, asked, said)
            if said.state == "PENDING" or "PENDING" in await self._mint.states(asked.inputs):
                return payment
            await self._take_back(payment, asked)
        except (LinkLost, TimedOut, MintRefused, NotFound) as error:
            _log.info("payment %s is pending: %s", payment.payment_hash[:8], error)
        return self._purse.payment(payment.payment_hash)

    async def _settled(self, payment: SentPayment, asked: Operation, said: Quote) -> SentPayment:
        """The payment as settled, with the change in the purse."""
        change = await self._change(asked, said)
        spent_sat = sum(one.amount_sat for one in asked.inputs) - sum(one.amount_sat for one in change)
        preimage = said.preimage if invoices.opens(said.preimage, payment.payment_hash) else None
        fee_msat = payment.fee_msat + spent_sat * _SAT_MSAT - payment.amount_msat
        done = replace(payment, state="settled", fee_msat=fee_msat, preimage=preimage, at_s=int(time.time()))
        with self._purse.transaction():
            if self._purse.end(asked.number, change):
                self._purse.mark_payment(done)
        return self._purse.payment(payment.payment_hash)

    async def _change(self, asked: Operation, said: Quote) -> list[Proof]:
        """What the mint gave back of its fee: as it tells, or as it restores."""
        if not asked.outputs:
            return []
        keys = (await self._mint.keyset(asked.outputs[0].id)).keys
        if said.change and len(said.change) <= len(asked.outputs):
            return [unblind_one(one, sig, keys) for one, sig in zip(asked.outputs, said.change, strict=False)]
        return await self._mint.restored(asked.outputs) if await self._mint.supports(9) else []

    async def _take_back(self, payment: SentPayment, asked: Operation) -> None:
        """Swap the inputs of a payment that was not made, and write it down as failed for good.

        A request to pay may have been on its way when the mint was asked first. Then the payment stays pending.
        """
        states = set(await self._mint.states(asked.inputs))
        if states == {"UNSPENT"}:
            left_sat = sum(one.amount_sat for one in asked.inputs) - await self._mint.fee_sat(asked.inputs)
            outputs = blanks(left_sat, (await self._mint.active()).id)
            with self._purse.transaction():
                self._purse.rewrite(asked.number, outputs)
            came = await self._mint.swap([one.as_input() for one in asked.inputs], outputs)
        elif "PENDING" in states or (await self._mint.melt_state(asked.quote)).state != "UNPAID":
            return
        elif not (came := await self._mint.restored(asked.outputs) or await self._mint.unspent(asked.inputs)):
            raise LinkLost("mint", "the money is spent, and it tells neither for what nor what came of it")
        failed = replace(payment, state="failed", fee_msat=0, at_s=int(time.time()), reason="the mint could not pay it")
        with self._purse.transaction():
            if self._purse.end(asked.number, came):
                self._purse.mark_payment(failed)

    async def lookup(self, payment_hash: str, direction: Direction) -> Transfer:
        if len(payment_hash) != 64 or not set(payment_hash) <= set("0123456789abcdef"):
            raise BadInput("payment_hash", "not 64 lowercase hex digits")
        if direction == "in":
            self._purse.invoice(payment_hash)
            await self._collect(payment_hash)
            found = self._purse.invoice(payment_hash)
            state = found.state
            return Transfer(payment_hash, "in", state, found.amount_sat * _SAT_MSAT, 0, None, found.at_s)  # type: ignore[arg-type]
        payment = self._purse.payment(payment_hash)
        if payment.state == "pending" and payment_hash not in self._paying:
            payment = await self._resolved(payment)
        return transfer_of(payment)

    # What comes

    async def settled(self, after: str = "") -> AsyncIterator[Receipt]:
        wallet = (await self.info()).id
        place, pause_s = cursor.place_of(wallet, after), _PAUSE_S
        while True:
            try:
                await self._collect()
                pause_s = _PAUSE_S
            except (LinkLost, TimedOut):
                pause_s = min(_LONGEST_S, 2 * pause_s)
            for one in self._purse.settled_after(place):
                assert one.place is not None
                place = one.place
                told = cursor.at(wallet, place)
                yield Receipt(told, one.payment_hash, "", one.amount_sat * _SAT_MSAT, one.at_s)
            await asyncio.sleep(pause_s)

    async def _collect(self, only: str = "") -> None:
        """Have the ecash of paid invoices made, of all or of one. Raises LinkLost, TimedOut."""
        for one in self._purse.open_invoices():
            if only and one.payment_hash != only:
                continue
            async with self._minting.setdefault(one.payment_hash, asyncio.Lock()):
                if self._purse.invoice(one.payment_hash).state == "open":
                    await self._collect_one(one.payment_hash)
            self._minting.pop(one.payment_hash, None)

    async def _collect_one(self, payment_hash: str) -> None:
        issued = self._purse.invoice(payment_hash)
        said = await self._mint.mint_state(issued.quote)
        now_s = int(time.time())
        if said.state == "UNPAID":
            if now_s > issued.expires_at_s + _LATE_S:
                with self._purse.transaction():
                    self._purse.mark_invoice(payment_hash, "failed", now_s)
            return
        if said.state == "PENDING":
            return
        asked = self._minted(issued.quote, issued.amount_sat, (await self._mint.active()).id)
        try:
            came = await self._mint.mint(asked.quote, asked.outputs)
        except MintRefused as error:
            came = await self._mint.restored(asked.outputs)
            if not came:
                if said.state != "ISSUED":
                    raise LinkLost("mint", f"it does not give the ecash of a paid invoice: {error.reason}") from error
                _log.warning("the ecash of invoice %s was given to another", payment_hash[:8])
                with self._purse.transaction():
                    self._purse.end(asked.number, [])
                    self._purse.mark_invoice(payment_hash, "failed", now_s)
                return
        with self._purse.transaction():
            if self._purse.end(asked.number, came):
                self._purse.mark_invoice(payment_hash, "settled", now_s)

    def _minted(self, quote: str, amount_sat: int, keyset: str) -> Operation:
        """The operation that takes the ecash of a quote: one for all time, on disk."""
        with self._purse.transaction():
            if not self._purse.operations("mint", quote):
                self._purse.begin("mint", [], blanks(amount_sat, keyset), quote)
            return self._purse.operations("mint", quote)[0]

    # After a crash

    async def _recover(self) -> None:
        """End the swaps that a crash or a lost answer left. Raises LinkLost, TimedOut."""
        if self._is_recovered:
            return
        async with self._spending:
            for one in self._purse.operations("swap"):
                with contextlib.suppress(MintRefused):
                    await self._swap(one)
            self._is_recovered = True

    async def _swap(self, asked: Operation) -> None:
        """Make a swap that is on disk, or find what came of it.

        Raises:
            MintRefused: its inputs are spent, and the mint restores nothing: the operation stays, for it to be shown.

        """
        try:
            came = await self._mint.swap([one.as_input() for one in asked.inputs], asked.outputs)
        except MintRefused as error:
            came = await self._mint.restored(asked.outputs)
            if not came:
                self._is_recovered = False
                # A swap is made whole or not at all: where some inputs are there it never was, and never will be.
                left = await self._mint.unspent(asked.inputs) if error.is_spent else asked.inputs
                if left:
                    with self._purse.transaction():
                        self._purse.end(asked.number, left)
                raise
        except NodewireError:
            self._is_recovered = False
            raise
        with self._purse.transaction():
            self._purse.end(asked.number, came)

    async def close(self) -> None:
        for task in list(self._paying.values()):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, NodewireError):
                await task
        await self._mint.close()
        self._purse.close()


def _blank_change(fee_sat: int, keyset: str) -> list[BlankOutput]:
    """Outputs of no amount for what the mint gives back of its fee (NUT-08)."""
    count = fee_sat.bit_length()
    return [BlankOutput(0, keyset, os.urandom(32).hex(), os.urandom(32)) for _ in range(count)]


def _check_fee(fee_msat: int, max_fee_msat: int) -> None:
    if fee_msat > max_fee_msat:
        raise PaymentFailed(
            "fee", f"the mint keeps up to {fee_msat} msat for fees, and {max_fee_msat} msat are allowed"
        )


def transfer_of(payment: SentPayment) -> Transfer:
    """What the purse's record of a payment says."""
    return Transfer(
        payment_hash=payment.payment_hash,
        direction="out",
        state=payment.state,  # type: ignore[arg-type]  # one of the purse's
        amount_msat=payment.amount_msat,
        fee_msat=payment.fee_msat,
        preimage=payment.preimage,
        at_s=payment.at_s,
        reason=payment.reason,
    )
