"""Small bonds in ecash of one mint, locked by NUT-11 to 2f+1 oracles, or after a time to the provider.

The mint is a custodian. A closing is one swap, whose outputs follow from the bond and a salt, and each is locked to
whom it is for. So oracles sign the same bytes, and who is paid takes it from the mint by its own key. Nobody but the
oracles knows the salt before the swap is made: a mint signs no output twice, so whoever had one signed first, for a
satoshi, would keep the bond from being closed.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import orjson

from nodewire.core.sqlite import open_versioned
from nodewire.errors import BadInput, BadSignature, NoQuorum, NotAllowed, NotFound, PaymentFailed, TimedOut
from nodewire.pay.bond.quorum.custody import ClosingSpoilt
from nodewire.pay.bond.quorum.terms import MAX_COINS, POOL, SAT_MSAT, BondTerms
from nodewire.pay.ecash import blind
from nodewire.pay.ecash.mint import Mint, MintRefused
from nodewire.pay.ecash.probe import LockProbe
from nodewire.pay.ecash.proofs import (
    BlankOutput,
    Lock,
    Proof,
    blanks,
    parse_output,
    parse_proof,
    sig_all_digest,
    signed_inputs,
    split,
    witness,
)
from nodewire.pay.lightning import invoices
from nodewire.protocol.encoding import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nodewire.nostr.keys import Keys
    from nodewire.pay.bond.quorum.custody import Closing, Coin
    from nodewire.pay.lightning.wallet import Wallet

CAP_SAT = 100_000
"""What a role locks at one mint, unless it says another: so much it may lose by the mint."""
_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
_CLAIM_S = 600
_SCHEMA = """
CREATE TABLE IF NOT EXISTS fundings (
    key TEXT PRIMARY KEY, quote TEXT NOT NULL, bolt11 TEXT NOT NULL, outputs TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS swaps (key TEXT PRIMARY KEY, inputs TEXT NOT NULL, outputs TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS claims (key TEXT PRIMARY KEY, payment_hash TEXT NOT NULL, amount_sat INTEGER NOT NULL)
"""


class EcashCustody:
    """At `mint`. Bonds are paid out of `wallet`, and claims into it; without one it is a registrar's or an oracle's.

    `file` is written ahead: what is paid to the mint and not yet signed by it is there.
    """

    kind = "ecash"
    least_sat = 1

    def __init__(self, mint: Mint, wallet: Wallet | None = None, file: Path | None = None, *, cap_sat: int = CAP_SAT):
        self._mint, self._wallet, self._cap_sat = mint, wallet, cap_sat
        self._db = open_versioned(file or ":memory:", "ecash of bonds", _SCHEMA, 1)

    @property
    def place(self) -> str:
        return self._mint.url

    @property
    def custodian(self) -> str:
        return f"the mint {self._mint.url}: it can refuse to pay, and it can make ecash out of nothing"

    async def fund(self, terms: BondTerms, amount_sat: int, key: str, held: Sequence[Coin] = ()) -> list[Coin]:
        """Out of the wallet by an invoice of the mint, at most `cap_sat`; the mint is probed before the first."""
        if amount_sat > self._cap_sat:
            raise NotAllowed("cap", f"{amount_sat} sat, and at most {self._cap_sat} sat are locked at one mint")
        await self.probe(terms.id)
        proofs = await self._minted(f"{terms.id}/{key}", amount_sat, _lock(terms))
        return [one.as_dict() for one in proofs]

    async def probe(self, name: str) -> None:
        """Try with a satoshi out of the wallet whether the mint enforces locks, once for each `name`.

        Raises:
            NotAllowed: it does not, or does not say so.

        """
        if not await self._mint.supports(11):
            raise NotAllowed("mint", f"{self.place} does not say that it enforces locks (NUT-11)")
        if self._db.execute("SELECT 1 FROM swaps WHERE key = ?", (f"probe/{name}",)).fetchone():
            return
        probe = LockProbe(self._mint)
        key = f"probe/{name}/{probe.lock.signers[0]}"  # its keys are gone if this process dies, and a satoshi with them
        (satoshi,) = await self._minted(key, await probe.amount_sat(), probe.lock)
        back = await probe.run(satoshi)
        with self._db:
            told = [orjson.dumps([one.as_dict() for one in proofs]).decode() for proofs in ([satoshi], back)]
            self._db.execute("INSERT INTO swaps VALUES (?, ?, ?)", (f"probe/{name}", *told))

    async def _minted(self, key: str, amount_sat: int, lock: Lock) -> list[Proof]:
        """So much ecash by the lock, paid for out of the wallet once for each `key`."""
        row = self._db.execute("SELECT quote, bolt11, outputs FROM fundings WHERE key = ?", (key,)).fetchone()
        if row is None:
            if self._wallet is None:
                raise PaymentFailed("wallet", "there is none to lock a bond from")
            keyset = (await self._mint.active()).id
            outputs = [
                BlankOutput(one.amount_sat, keyset, lock.secret(one.secret), one.r)
                for one in blanks(amount_sat, keyset)
            ]
            quote = await self._mint.mint_quote(amount_sat)
            row = (quote.id, quote.bolt11, orjson.dumps([one.as_dict() for one in outputs]).decode())
            with self._db:
                self._db.execute("INSERT INTO fundings VALUES (?, ?, ?, ?)", (key, *row))
        quote_id, bolt11, text = row
        outputs = [parse_output(one) for one in orjson.loads(text)]
        said = await self._mint.mint_state(quote_id)
        if said.state == "UNPAID":
            if self._wallet is None:
                raise PaymentFailed("wallet", "there is none to lock a bond from")
            invoice = invoices.decode(bolt11)
            if invoice.is_expired(time.time()) and await self._was_never_paid(invoice.payment_hash):
                self._forget_funding(key)
                return await self._minted(key, amount_sat, lock)
            if (earlier_sat := sum(one.amount_sat for one in outputs)) != amount_sat:
                wait = f"ask for as much, or again in {max(1, invoice.expires_at_s - int(time.time()))} s"
                raise NotAllowed("amount", f"a lock of {earlier_sat} sat is under way, and may yet be paid: {wait}")
            paid = await self._wallet.pay(bolt11, max_fee_msat=max(10_000, amount_sat * SAT_MSAT // 50))
            if paid.state == "failed":
                self._forget_funding(key)
                raise PaymentFailed("wallet", paid.reason)
            if paid.state != "settled":
                raise PaymentFailed("wallet", "the payment to the mint is pending; ask again")
        try:
            return await self._mint.mint(quote_id, outputs)
        except MintRefused as error:
            if said.state == "ISSUED" or error.is_signed:
                return await self._mint.restored(outputs)
            raise

    async def worth_sat(self, terms: BondTerms, coins: Sequence[Coin]) -> int:
        proofs, lock = _proofs(coins), _lock(terms)
        for one in proofs:
            lock.check(one.secret)
            if one.dleq is None:
                raise BadInput("coins", "one has no proof of the mint's signature (NUT-12)")
            keys = (await self._mint.keyset(one.id)).keys
            if one.amount_sat not in keys:
                raise BadInput("coins", "one is of an amount that its keyset has no key for")
            e, s, r = one.dleq
            blind.check_proof(one.secret.encode(), one.c, r, keys[one.amount_sat], e, s)
        if set(await self._mint.states(proofs)) != {"UNSPENT"}:
            raise NotFound("coins", "some of them are spent")
        return sum(one.amount_sat for one in proofs)

    async def check_size(self, terms: BondTerms, coins: Sequence[Coin]) -> None:
        proofs = _proofs(coins)
        fee_sat, sat = await self._mint.fee_sat(proofs), sum(one.amount_sat for one in proofs)
        if 10 * fee_sat > sat:
            raise BadInput("coins", f"the mint takes {fee_sat} sat of {sat} sat for them: lock fewer and larger ones")

    def key_of(self, coin: Coin) -> str:
        return parse_proof(coin).y

    async def propose(self, terms: BondTerms, coins: Sequence[Coin], payments: int) -> tuple[int, Mapping[str, Any]]:
        means = {"keyset": (await self._mint.active()).id, "salt": os.urandom(32).hex()}
        return await self._mint.fee_sat(_proofs(coins)), means

    async def check(self, closing: Closing) -> None:
        keyset = str(closing.means.get("keyset"))
        if len(keyset) not in (16, 66) or not set(keyset) <= set("0123456789abcdef"):
            raise BadInput("means", "no keyset's id")
        salt = str(closing.means.get("salt"))
        if len(salt) != 64 or not set(salt) <= set("0123456789abcdef"):
            raise BadInput("means", "no salt")
        if not await self._mint.is_active(keyset):
            raise BadInput("means", "the mint signs by this keyset no more")
        if closing.fee_sat != await self._mint.fee_sat(_proofs(closing.coins)):
            raise BadInput("fee_sat", "not what the mint takes")

    async def digests(self, closing: Closing) -> list[bytes]:
        return [sig_all_digest(_proofs(closing.coins), [one for part in _outputs(closing) for one in part])]

    async def execute(self, closing: Closing, signatures: Mapping[str, Sequence[bytes]]) -> Mapping[str, Any]:
        outputs = [one for part in _outputs(closing) for one in part]
        if await self._restored(outputs):
            return {"mint": self.place}
        proofs = _proofs(closing.coins)
        if await self._is_spoilt(outputs):
            if "SPENT" in await self._mint.states(proofs):
                raise NotFound("coins", "some of them are spent")
            raise ClosingSpoilt("closing", "the mint never signs these outputs")
        signers = [oracle for oracle in closing.terms.oracles if oracle in signatures][: closing.terms.quorum]
        if len(signers) < closing.terms.quorum:
            raise NoQuorum("signatures", f"{len(signers)} of {closing.terms.quorum} oracles signed")
        first = proofs[0].as_input(witness([signatures[oracle][0] for oracle in signers]))
        try:
            await self._mint.swap([first, *(one.as_input() for one in proofs[1:])], outputs)
        except MintRefused as error:
            if await self._restored(outputs):
                return {"mint": self.place}
            if "SPENT" in await self._mint.states(proofs):
                raise NotFound("coins", "some of them are spent") from error
            raise
        return {"mint": self.place}

    async def _is_spoilt(self, outputs: Sequence[BlankOutput]) -> bool:
        """Whether somebody had the mint sign one of the outputs before, or it signs by their keyset no more."""
        try:
            return bool(await self._mint.restored(outputs)) or not await self._mint.is_active(outputs[0].id)
        except BadSignature:
            return True

    async def _restored(self, outputs: Sequence[BlankOutput]) -> list[Proof]:
        """The proofs of all the outputs, if the mint has signed them all."""
        try:
            found = await self._mint.restored(outputs)
        except BadSignature:  # one was signed with another amount: that was not this swap
            return []
        return found if len(found) == len(outputs) else []

    async def refund(self, keys: Keys, terms: BondTerms, coins: Sequence[Coin]) -> tuple[int, str]:
        if (left_s := terms.refund_at_s - int(time.time())) >= 0:
            raise NotAllowed("bond", f"its own time is in {left_s} s, by the clock of this machine")
        proofs = _proofs(coins)
        free = await self._swapped(keys, f"refund/{terms.id}", proofs)
        return await self._melted(f"refund/{terms.id}", free, keys)

    async def _was_never_paid(self, payment_hash: str) -> bool:
        """Whether the wallet's own record says that it did not pay, and it can pay no more."""
        assert self._wallet is not None
        try:
            return (await self._wallet.lookup(payment_hash, "out")).state == "failed"
        except NotFound:
            return True
        except NotAllowed:  # it has no such record
            return False

    def _forget_funding(self, key: str) -> None:
        with self._db:
            self._db.execute("DELETE FROM fundings WHERE key = ?", (key,))

    async def _swapped(self, keys: Keys, key: str, proofs: Sequence[Proof]) -> list[Proof]:
        """Ecash that is locked to these keys with SIG_ALL, for ecash that is locked to them without."""
        row = self._db.execute("SELECT outputs FROM swaps WHERE key = ?", (key,)).fetchone()
        if row is None:
            keyset = (await self._mint.active()).id
            left_sat = sum(one.amount_sat for one in proofs) - await self._mint.fee_sat(proofs)
            own = Lock((keys.public,), is_sig_all=False)
            outputs = [
                BlankOutput(one.amount_sat, keyset, own.secret(one.secret), one.r) for one in blanks(left_sat, keyset)
            ]
            row = (orjson.dumps([one.as_dict() for one in outputs]).decode(),)
            with self._db:
                told = orjson.dumps([one.as_dict() for one in proofs]).decode()
                self._db.execute("INSERT INTO swaps VALUES (?, ?, ?)", (key, told, *row))
        outputs = [parse_output(one) for one in orjson.loads(row[0])]
        first = proofs[0].as_input(witness([keys.sign(sig_all_digest(proofs, outputs))]))
        try:
            return await self._mint.swap([first, *(one.as_input() for one in proofs[1:])], outputs)
        except MintRefused:
            if found := await self._restored(outputs):
                return found
            if "SPENT" in await self._mint.states(proofs):
                raise NotFound("coins", "some of them are spent") from None
            raise

    async def collect(self, keys: Keys, closing: Closing, left: Mapping[str, Any]) -> tuple[int, str]:
        mine = [n for n, payment in enumerate(closing.payments) if payment.payee == keys.public]
        if not mine:
            raise NotFound("closing", "it pays this key nothing")
        parts = _outputs(closing)
        outputs = [one for n in mine for one in parts[n]]
        proofs = await self._restored(outputs)
        if not proofs:
            raise PaymentFailed("closing", "the mint has not made it yet")
        return await self._melted(f"closing/{closing.terms.id}/{keys.public}", proofs, keys)

    async def _melted(self, key: str, proofs: Sequence[Proof], keys: Keys) -> tuple[int, str]:
        """Have the mint pay an invoice of the wallet with ecash that is locked to these keys; once for each `key`."""
        row = self._db.execute("SELECT payment_hash, amount_sat FROM claims WHERE key = ?", (key,)).fetchone()
        if row is not None and (states := set(await self._mint.states(proofs))) != {"UNSPENT"}:
            if "PENDING" in states:
                raise _under_way()
            return int(row[1]), str(row[0])
        if self._wallet is None:
            raise PaymentFailed("wallet", "there is none that the mint could pay to")
        total_sat = sum(one.amount_sat for one in proofs) - await self._mint.fee_sat(proofs)
        amount_sat = total_sat
        while amount_sat > 0:
            invoice = await self._wallet.invoice(amount_sat * SAT_MSAT, description="a bond", expiry_s=_CLAIM_S)
            quote = await self._mint.melt_quote(invoice.bolt11)
            if (over_sat := quote.amount_sat + quote.fee_sat - total_sat) <= 0:
                break
            amount_sat -= over_sat
        else:
            raise PaymentFailed("mint", f"its fee for a payment is more than the {total_sat} sat that are due")
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", (key, invoice.payment_hash, amount_sat))
        try:
            said = await self._mint.melt(quote.id, signed_inputs(keys, proofs))
        except MintRefused as error:
            if error.is_spent and row is not None:
                return int(row[1]), str(row[0])
            raise
        if said.state == "UNPAID":
            raise PaymentFailed("mint", "it could not pay the wallet's invoice; ask again")
        if said.state != "PAID":
            raise _under_way()
        return amount_sat, invoice.payment_hash

    async def close(self) -> None:
        await self._mint.close()
        self._db.close()


def _under_way() -> TimedOut:
    return TimedOut("mint", "its payment to the wallet is under way, and may yet fail: ask again later")


def _lock(terms: BondTerms) -> Lock:
    """The lock of every coin of a bond of these terms."""
    return Lock(terms.oracles, terms.quorum, terms.provider, terms.refund_at_s)


def _outputs(closing: Closing) -> list[list[BlankOutput]]:
    """For each payment what the mint is to sign: everybody who knows the bond and the salt derives the same."""
    keyset, salt, bond = str(closing.means.get("keyset")), str(closing.means.get("salt")), closing.terms
    pool = Lock(bond.oracles, bond.quorum)
    found = []
    for number, payment in enumerate(closing.payments):
        lock = pool if payment.payee == POOL else Lock((payment.payee,), is_sig_all=False)
        part = []
        for amount_sat in split(payment.amount_sat):
            seed = canonical.encode([bond.id, keyset, salt, number, payment.payee, amount_sat])
            nonce = canonical.tagged_hash("nodewire/bond-output/nonce/1", seed).hex()
            r = int.from_bytes(canonical.tagged_hash("nodewire/bond-output/factor/1", seed), "big") % (_ORDER - 1) + 1
            part.append(BlankOutput(amount_sat, keyset, lock.secret(nonce), r.to_bytes(32, "big")))
        found.append(part)
    return found


def _proofs(coins: Sequence[Coin]) -> list[Proof]:
    """Raises BadInput."""
    found = [parse_proof(coin) for coin in coins]
    if not 0 < len(found) <= MAX_COINS or len({one.secret for one in found}) != len(found):
        raise BadInput("coins", f"not 1 to {MAX_COINS}, or one stands twice")
    return found
