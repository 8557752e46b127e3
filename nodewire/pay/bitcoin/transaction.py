"""Transactions that spend Taproot outputs, and what their signatures sign: BIP-341 and BIP-342.

Every signature here is of the default hash type: it is for all inputs and all outputs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodewire.errors import BadInput
from nodewire.pay.bitcoin.taproot import compact_size, leaf_hash
from nodewire.protocol.encoding.canonical import tagged_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_SAT = 2_100_000_000_000_000
RBF = 0xFFFFFFFD
"""A sequence number by which the transaction may be replaced, and its lock time counts."""
_VERSION = 2


@dataclass(frozen=True, slots=True)
class Outpoint:
    """An output of a transaction: `txid` as 64 hex digits in the order that people write."""

    txid: str
    index: int

    def serialized(self) -> bytes:
        return bytes.fromhex(self.txid)[::-1] + self.index.to_bytes(4, "little")


@dataclass(frozen=True, slots=True)
class TransactionOutput:
    amount_sat: int
    script_pubkey: bytes

    def __post_init__(self) -> None:
        if not 0 <= self.amount_sat <= MOST_SAT:
            raise BadInput("amount", f"{self.amount_sat} sat, not from 0 to {MOST_SAT}")

    def serialized(self) -> bytes:
        return self.amount_sat.to_bytes(8, "little") + compact_size(len(self.script_pubkey)) + self.script_pubkey


@dataclass(frozen=True, slots=True)
class Transaction:
    """`spent` are the outputs that the inputs spend, in order; `witnesses` is one stack for each input, or empty."""

    inputs: tuple[Outpoint, ...]
    spent: tuple[TransactionOutput, ...]
    outputs: tuple[TransactionOutput, ...]
    lock_time: int = 0
    sequences: tuple[int, ...] = ()
    """RBF for each input if empty."""
    witnesses: tuple[tuple[bytes, ...], ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.inputs or len(self.inputs) != len(self.spent) or not self.outputs:
            raise BadInput("transaction", "without an input or an output, or not with what each input spends")

    @property
    def txid(self) -> str:
        return hashlib.sha256(hashlib.sha256(self._stripped()).digest()).digest()[::-1].hex()

    @property
    def vsize(self) -> int:
        """The virtual size, in bytes."""
        stripped, whole = len(self._stripped()), len(self.serialized())
        return -(-(3 * stripped + whole) // 4)

    @property
    def fee_sat(self) -> int:
        return sum(one.amount_sat for one in self.spent) - sum(one.amount_sat for one in self.outputs)

    def serialized(self) -> bytes:
        """As it is broadcast, with its witnesses."""
        stacks = self.witnesses or ((),) * len(self.inputs)
        witness = b"".join(
            compact_size(len(stack)) + b"".join(compact_size(len(item)) + item for item in stack) for stack in stacks
        )
        return self._head() + b"\x00\x01" + self._body() + witness + self.lock_time.to_bytes(4, "little")

    def sighash(self, index: int, script: bytes | None = None) -> bytes:
        """What signs input `index`: by the output's key, or by a leaf's `script`."""
        parts = [
            b"\x00",  # the epoch
            b"\x00",  # SIGHASH_DEFAULT
            _VERSION.to_bytes(4, "little"),
            self.lock_time.to_bytes(4, "little"),
            *self.common_hashes(),
            b"\x00" if script is None else b"\x02",
            index.to_bytes(4, "little"),
        ]
        if script is not None:
            parts += [leaf_hash(script), b"\x00", b"\xff\xff\xff\xff"]  # no OP_CODESEPARATOR
        return tagged_hash("TapSighash", b"".join(parts))

    def common_hashes(self) -> Sequence[bytes]:
        """SHA-256 of all outpoints, amounts, scripts, sequences and outputs."""
        scripts = (compact_size(len(one.script_pubkey)) + one.script_pubkey for one in self.spent)
        pieces = (
            b"".join(one.serialized() for one in self.inputs),
            b"".join(one.amount_sat.to_bytes(8, "little") for one in self.spent),
            b"".join(scripts),
            b"".join(sequence.to_bytes(4, "little") for sequence in self._sequences()),
            b"".join(one.serialized() for one in self.outputs),
        )
        return [hashlib.sha256(piece).digest() for piece in pieces]

    def _sequences(self) -> tuple[int, ...]:
        return self.sequences or (RBF,) * len(self.inputs)

    def _stripped(self) -> bytes:
        return self._head() + self._body() + self.lock_time.to_bytes(4, "little")

    def _head(self) -> bytes:
        return _VERSION.to_bytes(4, "little")

    def _body(self) -> bytes:
        ins = b"".join(
            one.serialized() + b"\x00" + sequence.to_bytes(4, "little")
            for one, sequence in zip(self.inputs, self._sequences(), strict=True)
        )
        outs = b"".join(one.serialized() for one in self.outputs)
        return compact_size(len(self.inputs)) + ins + compact_size(len(self.outputs)) + outs
