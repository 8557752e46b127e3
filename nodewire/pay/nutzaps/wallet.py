"""A customer's wallet of ecash that pays by nutzap where the payee takes ecash of its mint, else over Lightning.

A nutzap is drawn up as an invoice that no node can pay, so payer and ledger treat it as any. Its payment hash is of its
proofs. It has failed when the mint's record says that it never signed them, and settled when they are spent, which only
the payee can do. Until then it is on its way, and the same event is published again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson

from nodewire.core.bounded_dict import BoundedDict
from nodewire.errors import BadInput, NodewireError, NotFound, PaymentFailed
from nodewire.nostr import event as nostr_event
from nodewire.nostr import relay_visit
from nodewire.nostr.nips import nip61
from nodewire.nostr.nips.nip01 import Filter, newest_first
from nodewire.nostr.nips.nip61 import NutzapInfo
from nodewire.pay.accounts import zaps
from nodewire.pay.accounts.payer import Payer
from nodewire.pay.ecash.mint import MintRefused
from nodewire.pay.ecash.nutzap_book import SentNutzap
from nodewire.pay.ecash.proofs import BlankOutput, Lock, exact_amounts, fee_sat, parse_proof
from nodewire.pay.ecash.purse import SentPayment
from nodewire.pay.lightning import invoices
from nodewire.pay.nutzaps import authorship
from nodewire.pay.wallets.cashu import CashuWallet, transfer_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.pay.ecash.mint import Keyset
    from nodewire.pay.ecash.proofs import Proof
    from nodewire.pay.ecash.purse import Operation
    from nodewire.pay.lightning.invoices import Invoice
    from nodewire.pay.lightning.lnurl import Fetch
    from nodewire.pay.lightning.wallet import Direction, Receipt, Transfer, Wallet, WalletInfo

EXPIRY_S = 3_600
"""A nutzap that was drawn up is begun within that, or never."""
_KEPT_S = 86_400
_INFO_S = 600.0
"""What a payee takes is looked up again after so long."""
_MAX_PAYEES = 1_024
_AGAIN_S = 30.0
"""An event that nobody has claimed is published again after so long."""
_TIMEOUT_S = 10.0
_ASK_S, _LONGEST_S = 0.1, 2.0
"""Between two looks into the mint's record: the first pause, and the longest."""
_COPIED = frozenset({"a", "chunk", "attempt"})
"""Tags that a nutzap has from the zap request that it stands for, beside its `e`."""
log = logging.getLogger("nodewire.pay")


def open_payer(keys: Keys, wallet: Wallet, ledger: Ledger, pool: Pool, *, network: str, lump_msat: int = 0) -> Payer:
    """The payer of a wallet. One of ecash pays by nutzap those that take it, over `pool`."""
    if not isinstance(wallet, CashuWallet):
        return Payer(keys, wallet, ledger, network=network, lump_msat=lump_msat)
    own = NutzapWallet(wallet, keys, pool)
    return Payer(keys, own, ledger, network=network, route=own.route, lump_msat=lump_msat)


class NutzapWallet:
    """Of `wallet`, whose purse it shares."""

    def __init__(self, wallet: CashuWallet, keys: Keys, pool: Pool) -> None:
        self._wallet, self._keys, self._pool = wallet, keys, pool
        self._mint, self._purse = wallet.mint, wallet.purse
        self._infos = BoundedDict[str, tuple[float, NutzapInfo | None]](_MAX_PAYEES)
        """By payee, when it was looked up (monotonic) and what it takes."""
        self._published: dict[str, float] = {}
        """By payment hash, when its event was last published (monotonic)."""
        self._turns: dict[str, asyncio.Lock] = {}

    async def info(self) -> WalletInfo:
        return await self._wallet.info()

    async def balance_msat(self) -> int:
        return await self._wallet.balance_msat()

    async def invoice(self, amount_msat: int, *, description: str, expiry_s: int) -> Invoice:
        return await self._wallet.invoice(amount_msat, description=description, expiry_s=expiry_s)

    def settled(self, after: str = "") -> AsyncIterator[Receipt]:
        return self._wallet.settled(after)

    async def close(self) -> None:
        """The wallet beneath is closed by its owner."""

    async def pay(self, bolt11: str, *, max_fee_msat: int, timeout_s: float = 60.0) -> Transfer:
        payment_hash = invoices.decode(bolt11).payment_hash
        try:
            one = self._purse.nutzaps.sent(payment_hash)
        except NotFound:
            return await self._wallet.pay(bolt11, max_fee_msat=max_fee_msat, timeout_s=timeout_s)
        try:
            payment = self._purse.payment(payment_hash)
        except NotFound:
            payment = await self._begin(one, max_fee_msat)
        loop, pause_s = asyncio.get_running_loop(), _ASK_S
        until = loop.time() + timeout_s
        while payment.state == "pending":
            payment = await self._advance(payment_hash)
            if loop.time() >= until:
                break
            await asyncio.sleep(pause_s if payment.state == "pending" else 0)
            pause_s = min(_LONGEST_S, 2 * pause_s)
        return transfer_of(payment)

    async def lookup(self, payment_hash: str, direction: Direction) -> Transfer:
        try:
            if direction == "out":
                self._purse.nutzaps.sent(payment_hash)
        except NotFound:
            return await self._wallet.lookup(payment_hash, direction)
        if direction == "in":
            return await self._wallet.lookup(payment_hash, direction)
        payment = self._purse.payment(payment_hash)
        return transfer_of(await self._advance(payment_hash) if payment.state == "pending" else payment)

    # Where a payee takes nutzaps

    async def route(self, payee: str, amount_msat: int) -> Fetch | None:
        """Draws up nutzaps to a payee that takes ecash of this mint, and that reads a relay of this pool's."""
        info = await self._taken_by(payee) if amount_msat % 1_000 == 0 else None
        if info is None or not self._shared(info.relays):
            return None
        url = next((url for url, _ in info.mints if url.rstrip("/") == self._mint.url and info.takes(url)), None)
        if url is None:
            return None
        keyset, to, mint = await self._mint.active(), info, url
        amounts = exact_amounts(amount_msat // 1_000, keyset.fee_ppk, nip61.MAX_PROOFS)

        async def fetch(zap_request: Event, _: int) -> Invoice:
            return await self._draft(to, mint, zap_request, amounts, keyset)

        return fetch if amounts else None

    async def _draft(
        self, info: NutzapInfo, mint: str, zap_request: Event, amounts: Sequence[int], keyset: Keyset
    ) -> Invoice:
        """Draw up the nutzap that does what a zap request asks for, of proofs of these amounts (in satoshis).

        It is on disk then, and nothing is spent.
        """
        salt, now_s = os.urandom(32).hex(), int(time.time())
        lock = Lock((info.pubkey,), is_sig_all=False)
        outputs = tuple(
            BlankOutput(sat, keyset.id, lock.secret(authorship.nonce(self._keys.public, salt, number)), os.urandom(32))
            for number, sat in enumerate(amounts)
        )
        amount_sat = sum(amounts) - fee_sat(len(amounts), keyset.fee_ppk)
        preimage = authorship.preimage(one.secret for one in outputs)
        text = zap_request.to_json()
        made = invoices.issue(
            os.urandom(32),
            network=(await self.info()).network,
            amount_msat=amount_sat * 1_000,
            payment_hash=invoices.hash_of(preimage),
            created_at_s=now_s,
            expiry_s=EXPIRY_S,
            description_hash=zaps.description_hash(text),
        )
        draft = orjson.dumps([text, info.author, info.pubkey, mint, salt]).decode()
        relays = self._shared(info.relays)
        one = SentNutzap(made.payment_hash, preimage, amount_sat, outputs, draft, relays, made.expires_at_s)
        with self._purse.transaction():
            self._purse.nutzaps.forget(now_s - _KEPT_S)
            self._purse.nutzaps.draft(one)
        return made

    async def _taken_by(self, payee: str) -> NutzapInfo | None:
        """What a payee says that it takes. Nothing is known where no relay answers: its endpoint is asked then."""
        now, known = asyncio.get_running_loop().time(), self._infos.get(payee)
        if known is not None and now < known[0] + _INFO_S:
            return known[1]
        wanted = Filter(kinds=frozenset({nip61.INFO}), authors=frozenset({payee}))
        try:
            found = await self._pool.fetch([wanted], timeout_s=_TIMEOUT_S)
        except NodewireError as error:
            log.info("what %s takes cannot be looked up: %s", payee[:8], ascii(str(error)))
            return None
        info = None
        if found:
            try:
                info = nip61.parse_info(min(found, key=newest_first))
            except BadInput as error:
                log.info("what %s takes is not clear: %s", payee[:8], ascii(str(error)))
        self._infos[payee] = now, info
        return info

    def _shared(self, named: Sequence[str]) -> tuple[str, ...]:
        """The pool's relays that are among the named ones."""
        spelled = {_spelled(url) for url in named} - {""}
        return tuple(one.url for one in self._pool.relays if _spelled(one.url) in spelled)

    # A payment's way

    async def _begin(self, one: SentNutzap, max_fee_msat: int) -> SentPayment:
        """The payment on disk, pending, with the ecash that is to be locked; or failed, as nothing was begun."""
        amount_msat, now_s = one.amount_sat * 1_000, int(time.time())
        blank = SentPayment(one.payment_hash, "", amount_msat, "failed", 0, None, now_s, "")
        if now_s >= one.expires_at_s:
            return self._kept(replace(blank, reason="the nutzap was drawn up too long ago"))
        wanted_sat = sum(output.amount_sat for output in one.outputs)
        try:
            async with self._wallet.chosen(wanted_sat, amount_msat=amount_msat, max_fee_msat=max_fee_msat) as found:
                inputs, swapped_sat = found
                fee_msat = (sum(each.amount_sat for each in inputs) + swapped_sat) * 1_000 - amount_msat
                with self._purse.transaction():
                    if self._purse.add_payment(replace(blank, state="pending", fee_msat=fee_msat)):
                        self._purse.begin("lock", inputs, one.outputs, one.payment_hash)
        except PaymentFailed as error:
            return self._kept(replace(blank, reason=error.reason))
        return self._purse.payment(one.payment_hash)

    def _kept(self, payment: SentPayment) -> SentPayment:
        with self._purse.transaction():
            self._purse.add_payment(payment)
        return self._purse.payment(payment.payment_hash)

    async def _advance(self, payment_hash: str) -> SentPayment:
        """Do what is next for a pending payment; it stays pending if mint or relays do not answer."""
        async with self._turns.setdefault(payment_hash, asyncio.Lock()):
            try:
                for asked in self._purse.operations("lock", payment_hash):
                    await self._lock(asked)
                one = self._purse.nutzaps.sent(payment_hash)
                if one.event:
                    await self._publish(one)
                    await self._look(one)
            except NodewireError as error:
                log.info("nutzap %s is on its way: %s", payment_hash[:8], error)
        payment = self._purse.payment(payment_hash)
        if payment.state != "pending":
            self._turns.pop(payment_hash, None)
            self._published.pop(payment_hash, None)
        return payment

    async def _lock(self, asked: Operation) -> None:
        """Have the mint sign the locked proofs, or find that it did; the event is on disk with them.

        The payment has failed if the mint says that it never signed them. Then no event has them.
        """
        try:
            came = await self._mint.swap([one.as_input() for one in asked.inputs], asked.outputs)
        except MintRefused as error:
            came = await self._mint.restored(asked.outputs)
            if not came:
                await self._fail(asked, error)
                return
        event = self._event(self._purse.nutzaps.sent(asked.quote), came)
        with self._purse.transaction():
            if self._purse.end(asked.number, []):
                self._purse.nutzaps.lock(asked.quote, event.to_json())

    async def _fail(self, asked: Operation, error: MintRefused) -> None:
        left = await self._mint.unspent(asked.inputs) if error.is_spent else asked.inputs
        failed = replace(self._purse.payment(asked.quote), state="failed", fee_msat=0, at_s=int(time.time()))
        with self._purse.transaction():
            if self._purse.end(asked.number, left):
                self._purse.mark_payment(replace(failed, reason=f"the mint {error.reason}"))

    def _event(self, one: SentNutzap, proofs: Sequence[Proof]) -> Event:
        """The nutzap, with the proofs in the order of their numbers."""
        text, author, pubkey, mint, salt = orjson.loads(one.draft)
        request = nostr_event.parse(text)
        by_secret = {proof.secret: proof for proof in proofs}
        told = [orjson.dumps(by_secret[output.secret].as_dict()).decode() for output in one.outputs]
        return nip61.build(
            self._keys,
            nip61.NutzapInfo(author, one.relays, ((mint, (nip61.UNIT,)),), pubkey),
            mint,
            told,
            created_at=request.created_at,
            content=request.content,
            event=request.tag("e"),
            others=[*(tag for tag in request.tags if tag[0] in _COPIED), [authorship.SALT, salt]],
        )

    async def _publish(self, one: SentNutzap) -> None:
        """Bring the event to the relays where its payee reads, if that was not done a moment ago."""
        now = asyncio.get_running_loop().time()
        if now < self._published.get(one.payment_hash, -_AGAIN_S) + _AGAIN_S:
            return
        event = nostr_event.parse(one.event)
        here = {status.url for status in self._pool.relays}
        visits = [self._pool.publish_at(url, event, _TIMEOUT_S) for url in one.relays if url in here]
        outcomes = await asyncio.gather(*visits, return_exceptions=True)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for error in errors:
            log.info("nutzap %s is not at a relay: %s", one.payment_hash[:8], ascii(str(error)))
        if len(errors) < len(outcomes):
            self._published[one.payment_hash] = now

    async def _look(self, one: SentNutzap) -> None:
        """Write down that it has settled, if the mint's record says that all of its proofs are spent."""
        proofs = [parse_proof(orjson.loads(text)) for text in nostr_event.parse(one.event).values("proof")]
        if set(await self._mint.states(proofs)) == {"SPENT"}:
            payment = self._purse.payment(one.payment_hash)
            with self._purse.transaction():
                self._purse.mark_payment(
                    replace(payment, state="settled", preimage=one.preimage, at_s=int(time.time()))
                )


def _spelled(url: str) -> str:
    try:
        return relay_visit.parse(url)
    except BadInput:
        return ""
