"""A vault: tr(NUMS,{multi_a(2f+1,oracles),and_v(v:pk(provider),after(T))}). Pure.

2f+1 oracles spend it at any time, to the outputs that each of them has signed. From T on (a unix time, as blocks tell
it) the provider spends it alone. Nobody spends it by its key: there is none. So anybody who knows the oracles, the
provider and T finds the one output that can be the vault.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nodewire.errors import BadInput, BadSignature, NoQuorum
from nodewire.nostr.keys import Keys, verify
from nodewire.pay.bitcoin import taproot
from nodewire.pay.bitcoin.taproot import NUMS, TaprootOutput
from nodewire.pay.bitcoin.transaction import Outpoint, Transaction, TransactionOutput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DUST_SAT = 330
"""Less than that in a Taproot output is not relayed."""
LEAST_TIME_S = 500_000_000
"""A lock time below is a height."""
_QUORUM_LEAF, _REFUND_LEAF = 0, 1


@dataclass(frozen=True, slots=True)
class Vault:
    """Keys are 64 hex digits; `refund_at_s` is T."""

    oracles: tuple[str, ...]
    quorum: int
    provider: str
    refund_at_s: int

    def __post_init__(self) -> None:
        if not LEAST_TIME_S <= self.refund_at_s < 2**31:
            raise BadInput("refund_at_s", f"{self.refund_at_s}, not from {LEAST_TIME_S} to {2**31 - 1}")

    @property
    def output(self) -> TaprootOutput:
        return taproot.output(NUMS, (self._quorum_script(), self._refund_script()))

    @property
    def descriptor(self) -> str:
        """As a Bitcoin node reads it, without its checksum."""
        oracles = ",".join(self.oracles)
        refund = f"and_v(v:pk({self.provider}),after({self.refund_at_s}))"
        return f"tr({NUMS.hex()},{{multi_a({self.quorum},{oracles}),{refund}}})"

    def _quorum_script(self) -> bytes:
        return taproot.multi_a(self.quorum, [bytes.fromhex(oracle) for oracle in self.oracles])

    def _refund_script(self) -> bytes:
        return taproot.pk_after(bytes.fromhex(self.provider), self.refund_at_s)

    def spend(self, coins: Mapping[Outpoint, int], outputs: Sequence[TransactionOutput]) -> Transaction:
        """The transaction, unsigned, of all `coins` of the vault (satoshis by outpoint) to `outputs`."""
        ordered = sorted(coins.items(), key=lambda coin: (coin[0].txid, coin[0].index))
        spent = tuple(TransactionOutput(sat, self.output.script_pubkey) for _, sat in ordered)
        return Transaction(tuple(at for at, _ in ordered), spent, tuple(outputs))

    def digests(self, unsigned: Transaction) -> list[bytes]:
        """What an oracle signs: one digest for each input."""
        return [unsigned.sighash(n, self._quorum_script()) for n in range(len(unsigned.inputs))]

    def check(self, unsigned: Transaction, oracle: str, signatures: Sequence[bytes]) -> None:
        """Raises BadSignature unless these are the oracle's, one for each input."""
        digests = self.digests(unsigned)
        if oracle not in self.oracles or len(signatures) != len(digests):
            raise BadSignature("signatures", "not one for each input, or not by an oracle of the vault")
        if not all(verify(oracle, digest, one) for digest, one in zip(digests, signatures, strict=True)):
            raise BadSignature("signatures", f"not {oracle[:8]}'s, or of another transaction")

    def signed(self, unsigned: Transaction, signatures: Mapping[str, Sequence[bytes]]) -> Transaction:
        """The transaction with the signatures of the first 2f+1 oracles that signed, as `check` has them.

        Raises:
            NoQuorum: too few signed.

        """
        signers = [oracle for oracle in self.oracles if oracle in signatures][: self.quorum]
        if len(signers) < self.quorum:
            raise NoQuorum("signatures", f"{len(signers)} of {self.quorum} oracles signed")
        script, block = self._quorum_script(), self.output.control_block(_QUORUM_LEAF)
        # The script takes the first oracle's from the top of the stack: it stands last.
        stacks = (
            tuple(signatures[oracle][n] if oracle in signers else b"" for oracle in reversed(self.oracles))
            for n in range(len(unsigned.inputs))
        )
        return replace(unsigned, witnesses=tuple((*stack, script, block) for stack in stacks))

    def refund(self, keys: Keys, coins: Mapping[Outpoint, int], to: bytes, fee_sat: int) -> Transaction:
        """The provider's own transaction of all `coins` to the output script `to`; no block before T has it.

        Raises:
            BadInput: the fee leaves too little.

        """
        left_sat = sum(coins.values()) - fee_sat
        if left_sat < DUST_SAT:
            raise BadInput("fee", f"{fee_sat} sat leave {left_sat} sat of the vault")
        unsigned = replace(self.spend(coins, [TransactionOutput(left_sat, to)]), lock_time=self.refund_at_s)
        script, block = self._refund_script(), self.output.control_block(_REFUND_LEAF)
        stacks = ((keys.sign(unsigned.sighash(n, script)), script, block) for n in range(len(unsigned.inputs)))
        return replace(unsigned, witnesses=tuple(stacks))


def pool_output(oracles: Sequence[str], quorum: int) -> TaprootOutput:
    """Where the rest of a slashed bond goes: tr(NUMS,multi_a(2f+1,oracles))."""
    return taproot.output(NUMS, (taproot.multi_a(quorum, [bytes.fromhex(oracle) for oracle in oracles]),))


def key_output(public: str) -> TaprootOutput:
    """The output of a Nostr key, tr(key): the key alone spends it, and needs no address of its own."""
    return taproot.output(bytes.fromhex(public))


def key_spend(keys: Keys, coins: Mapping[Outpoint, int], to: bytes, fee_sat: int) -> Transaction:
    """The transaction of all `coins` at `key_output` to the output script `to`. Raises BadInput: too little is left."""
    left_sat = sum(coins.values()) - fee_sat
    if left_sat < DUST_SAT:
        raise BadInput("fee", f"{fee_sat} sat leave {left_sat} sat of what is paid")
    ordered = sorted(coins.items(), key=lambda coin: (coin[0].txid, coin[0].index))
    own = key_output(keys.public).script_pubkey
    spent = tuple(TransactionOutput(sat, own) for _, sat in ordered)
    unsigned = Transaction(tuple(at for at, _ in ordered), spent, (TransactionOutput(left_sat, to),))
    signer = Keys(taproot.tweaked_secret(keys.secret))
    return replace(unsigned, witnesses=tuple((signer.sign(unsigned.sighash(n)),) for n in range(len(ordered))))
