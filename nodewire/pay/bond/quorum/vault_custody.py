"""Bonds in vaults on Bitcoin (`pay.bitcoin.vault`), seen and moved by one's own Bitcoin node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.errors import BadInput, NotAllowed, NotFound, PaymentFailed
from nodewire.pay.bitcoin import vault as vaults
from nodewire.pay.bitcoin.transaction import Outpoint, Transaction, TransactionOutput
from nodewire.pay.bitcoin.vault import Vault
from nodewire.pay.bond.quorum.terms import MAX_COINS, POOL, BondTerms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodewire.nostr.keys import Keys
    from nodewire.pay.bitcoin.node import BitcoinNode
    from nodewire.pay.bond.quorum.custody import Closing, Coin

MOST_FEE_SAT_VB = 1_000
SOUND_FEE_SAT_VB = 10
"""What a closing must be able to pay for a virtual byte: a bond in many small coins could never be closed."""
_FEW_PAYMENTS = 3
_SIGNATURE_BYTES, _LEAST_FEE_SAT_VB = 66, 2
_REFUND_VBYTES, _OUTPUT_VBYTES = 120, 43


class VaultCustody:
    """`confirmations`: so many blocks must have an output before it counts."""

    kind = "vault"
    least_sat = vaults.DUST_SAT
    custodian = ""

    def __init__(self, node: BitcoinNode, confirmations: int = 6) -> None:
        self._node, self._confirmations = node, confirmations

    @property
    def place(self) -> str:
        return "bitcoin"

    async def fund(self, terms: BondTerms, amount_sat: int, key: str, held: Sequence[Coin] = ()) -> list[Coin]:
        """Out of the node's wallet, whose record tells what it has paid there before, for no coin that is `held`."""
        output, known = vault_of(terms).output, {self.key_of(coin) for coin in held}
        paid = (await self._node.paid(output)).items()
        there = {at: sat for at, sat in paid if sat == amount_sat and f"{at.txid}:{at.index}" not in known}
        at = min(there, key=lambda one: one.txid, default=None) or await self._node.pay(output, amount_sat)
        return [{"txid": at.txid, "index": at.index, "amount_sat": amount_sat}]

    async def worth_sat(self, terms: BondTerms, coins: Sequence[Coin]) -> int:
        script = vault_of(terms).output.script_pubkey
        for at, sat in _outpoints(coins).items():
            found = await self._node.output(at)
            if (found.script_pubkey, found.amount_sat) != (script, sat):
                raise BadInput("coins", f"{at.txid[:16]}…:{at.index} is not this vault's, or not of {sat} sat")
            if found.confirmations < self._confirmations:
                has = f"{found.confirmations} of {self._confirmations} confirmations"
                raise NotFound("coins", f"{at.txid[:16]}…:{at.index} has {has}; ask again when blocks have come")
        return sum(_outpoints(coins).values())

    async def check_size(self, terms: BondTerms, coins: Sequence[Coin]) -> None:
        there, rate = _outpoints(coins), await self._node.fee_rate(SOUND_FEE_SAT_VB)
        fee_sat, sat = rate * _closing_vsize(vault_of(terms), there, _FEW_PAYMENTS), sum(there.values())
        if fee_sat > sat // 10:
            reason = f"a closing may cost {fee_sat} sat, more than a tenth of {sat} sat"
            raise BadInput("coins", f"{reason}: lock fewer and larger ones")

    def key_of(self, coin: Coin) -> str:
        ((at, _),) = _outpoints([coin]).items()
        return f"{at.txid}:{at.index}"

    async def propose(self, terms: BondTerms, coins: Sequence[Coin], payments: int) -> tuple[int, Mapping[str, Any]]:
        vault, total_sat = vault_of(terms), sum(_outpoints(coins).values())
        rate = min(MOST_FEE_SAT_VB, await self._node.fee_rate(_LEAST_FEE_SAT_VB))
        fee_sat = rate * _closing_vsize(vault, _outpoints(coins), payments)
        return min(fee_sat, total_sat // 10), {}

    async def check(self, closing: Closing) -> None:
        unsigned = self._unsigned(closing)
        most_sat = min(MOST_FEE_SAT_VB * _vsize(vault_of(closing.terms), unsigned), sum(_sats(closing)) // 10)
        if not 0 < unsigned.fee_sat == closing.fee_sat <= most_sat:
            raise BadInput("fee_sat", f"{closing.fee_sat} sat: more than {most_sat} sat, or not what the outputs leave")

    async def digests(self, closing: Closing) -> list[bytes]:
        return vault_of(closing.terms).digests(self._unsigned(closing))

    async def execute(self, closing: Closing, signatures: Mapping[str, Sequence[bytes]]) -> Mapping[str, Any]:
        unsigned = self._unsigned(closing)
        signed = vault_of(closing.terms).signed(unsigned, signatures)
        if not await self._node.knows(signed):
            for at in signed.inputs:
                await self._node.output(at)  # raises NotFound
            await self._node.send(signed)
        return {"txid": signed.txid}

    async def refund(self, keys: Keys, terms: BondTerms, coins: Sequence[Coin]) -> tuple[int, str]:
        now_s = await self._node.median_time_s()
        if now_s < terms.refund_at_s:
            raise NotAllowed("bond", f"its own time is in {terms.refund_at_s - now_s} s, by the time of the chain")
        there = _outpoints(coins)
        for at in list(there):
            await self._node.output(at)
        fee_sat = await self._node.fee_rate(_LEAST_FEE_SAT_VB) * (_REFUND_VBYTES * len(there) + _OUTPUT_VBYTES)
        to = await self._node.new_script()
        signed = vault_of(terms).refund(keys, there, to, min(fee_sat, sum(there.values()) // 10))
        return signed.outputs[0].amount_sat, await self._node.send(signed)

    async def collect(self, keys: Keys, closing: Closing, left: Mapping[str, Any]) -> tuple[int, str]:
        mine = [n for n, payment in enumerate(closing.payments) if payment.payee == keys.public]
        if not mine:
            raise NotFound("closing", "it pays this key nothing")
        txid = self._unsigned(closing).txid
        coins = {Outpoint(txid, n): closing.payments[n].amount_sat for n in mine}
        try:
            for at in coins:
                await self._node.output(at)
        except NotFound:
            if left.get("txid") != txid:
                raise PaymentFailed("closing", "no block and no pool has it yet") from None
            return sum(coins.values()), txid  # taken before
        fee_sat = await self._node.fee_rate(_LEAST_FEE_SAT_VB) * (_REFUND_VBYTES + _OUTPUT_VBYTES)
        to = await self._node.new_script()
        signed = vaults.key_spend(keys, coins, to, min(fee_sat, sum(coins.values()) // 2))
        return signed.outputs[0].amount_sat, await self._node.send(signed)

    async def close(self) -> None:
        await self._node.close()

    def _unsigned(self, closing: Closing) -> Transaction:
        outputs = [TransactionOutput(one.amount_sat, _script(closing.terms, one.payee)) for one in closing.payments]
        return vault_of(closing.terms).spend(_outpoints(closing.coins), outputs)


def vault_of(terms: BondTerms) -> Vault:
    """The one vault that a bond of these terms can be in."""
    return Vault(terms.oracles, terms.quorum, terms.provider, terms.refund_at_s)


def _script(terms: BondTerms, payee: str) -> bytes:
    if payee == POOL:
        return vaults.pool_output(terms.oracles, terms.quorum).script_pubkey
    return vaults.key_output(payee).script_pubkey


def _sats(closing: Closing) -> list[int]:
    return list(_outpoints(closing.coins).values())


def _closing_vsize(vault: Vault, coins: Mapping[Outpoint, int], payments: int) -> int:
    outputs = [TransactionOutput(vaults.DUST_SAT, vault.output.script_pubkey)] * max(1, payments)
    return _vsize(vault, vault.spend(coins, outputs))


def _vsize(vault: Vault, unsigned: Transaction) -> int:
    """Of the transaction when it is signed."""
    witness = vault.quorum * _SIGNATURE_BYTES + len(vault.oracles) * 35 + 140
    return unsigned.vsize + -(-witness * len(unsigned.inputs) // 4)


def _outpoints(coins: Sequence[Coin]) -> dict[Outpoint, int]:
    """Satoshis by outpoint. Raises BadInput."""
    found: dict[Outpoint, int] = {}
    for coin in coins:
        txid, index, sat = (coin.get(name) for name in ("txid", "index", "amount_sat"))
        is_txid = isinstance(txid, str) and len(txid) == 64 and set(txid) <= set("0123456789abcdef")
        if not is_txid or type(index) is not int or type(sat) is not int:
            raise BadInput("coins", "one is no output {txid, index, amount_sat}")
        if not (0 <= index < 2**32 and 0 < sat <= 2_100_000_000_000_000) or Outpoint(str(txid), index) in found:
            raise BadInput("coins", "an output is out of range, or stands twice")
        found[Outpoint(str(txid), index)] = sat
    if not 0 < len(found) <= MAX_COINS:
        raise BadInput("coins", f"not 1 to {MAX_COINS}")
    return found
