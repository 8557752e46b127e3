"""Proofs of a Cashu mint, outputs that it is to sign, and the locks in their secrets (NUT-00, 10, 11). Pure.

Amounts are satoshis. A secret is text; one that begins as JSON does is a lock, which the mint enforces.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from nodewire.errors import BadInput, BadSignature
from nodewire.nostr.keys import Keys, verify
from nodewire.pay.ecash import blind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_SECRET_CHARS = 4_096
MAX_PROOFS = 256
MOST_SAT = 2**52


@dataclass(frozen=True, slots=True)
class Proof:
    """`amount_sat` of the mint's keyset `id`. Who knows the secret and C, and meets the lock, has the money."""

    amount_sat: int
    id: str
    secret: str = field(repr=False)
    c: str = field(repr=False)
    dleq: tuple[str, str, str] | None = field(default=None, repr=False)
    """e, s and the blinding factor r: whoever has them checks the proof without the mint."""

    @property
    def y(self) -> str:
        return blind.hash_to_curve(self.secret.encode())

    def as_input(self, witness: str = "") -> dict[str, Any]:
        """As the mint takes it."""
        body: dict[str, Any] = {"amount": self.amount_sat, "id": self.id, "secret": self.secret, "C": self.c}
        return {**body, "witness": witness} if witness else body

    def as_dict(self) -> dict[str, Any]:
        """As it is kept and given on."""
        dleq = {"dleq": dict(zip(("e", "s", "r"), self.dleq, strict=True))} if self.dleq is not None else {}
        return {**self.as_input(), **dleq}


@dataclass(frozen=True, slots=True)
class BlankOutput:
    """What the mint is to sign: a secret, hidden by the factor `r` (32 bytes). Who has both has what comes of it."""

    amount_sat: int
    id: str
    secret: str = field(repr=False)
    r: bytes = field(repr=False)

    @property
    def b(self) -> str:
        return blind.blinded(self.secret.encode(), self.r)

    def as_output(self) -> dict[str, Any]:
        """As the mint takes it."""
        return {"amount": self.amount_sat, "id": self.id, "B_": self.b}

    def as_dict(self) -> dict[str, Any]:
        return {"amount": self.amount_sat, "id": self.id, "secret": self.secret, "r": self.r.hex()}


def parse_proof(said: object) -> Proof:
    """A proof as it came from elsewhere. Raises BadInput, which names no secret."""
    if not isinstance(said, dict):
        raise BadInput("proof", "not an object")
    amount_sat, id_, secret, c = (said.get(name) for name in ("amount", "id", "secret", "C"))
    if type(amount_sat) is not int or not 0 < amount_sat <= MOST_SAT or amount_sat & (amount_sat - 1):
        raise BadInput("proof.amount", "not a power of two")
    if not (isinstance(secret, str) and 0 < len(secret) <= MAX_SECRET_CHARS):
        raise BadInput("proof.secret", f"not text of 1 to {MAX_SECRET_CHARS} characters")
    dleq = said.get("dleq")
    found = None
    if isinstance(dleq, dict):
        found = (_hex(dleq.get("e"), "e", 64), _hex(dleq.get("s"), "s", 64), _hex(dleq.get("r"), "r", 64))
    return Proof(amount_sat, _keyset(id_), secret, _hex(c, "C", 66), found)


def parse_output(said: Mapping[str, Any]) -> BlankOutput:
    """A blank output as this software kept it."""
    return BlankOutput(int(said["amount"]), str(said["id"]), str(said["secret"]), bytes.fromhex(said["r"]))


def split(amount_sat: int) -> list[int]:
    """The powers of two that make up the amount, the least first."""
    if not 0 <= amount_sat <= MOST_SAT:
        raise BadInput("amount", f"{amount_sat} sat, not from 0 to {MOST_SAT}")
    return [1 << bit for bit in range(amount_sat.bit_length()) if amount_sat >> bit & 1]


def fee_sat(count: int, fee_ppk: int) -> int:
    """The fee of a mint for so many inputs, in satoshis."""
    return -(-count * fee_ppk // 1_000)


def exact_amounts(amount_sat: int, fee_ppk: int, most: int = MAX_PROOFS) -> list[int]:
    """Amounts of the fewest proofs, `most` at most, that are just `amount_sat` after the mint's fee for them.

    They are powers of two, the least first. None if there are none.
    """
    for count in range(1, most + 1):
        whole_sat = amount_sat + fee_sat(count, fee_ppk)
        if whole_sat.bit_count() <= count <= whole_sat <= MOST_SAT:
            found = split(whole_sat)
            while len(found) < count:
                half = found.pop() // 2
                found = sorted([*found, half, half])
            return found
    return []


def blanks(amount_sat: int, keyset: str) -> list[BlankOutput]:
    """Outputs of the owner's own, with secrets and factors by chance."""
    return blanks_of(split(amount_sat), keyset)


def blanks_of(amounts_sat: Sequence[int], keyset: str) -> list[BlankOutput]:
    """As `blanks`, one output for each of these powers of two."""
    return [BlankOutput(one, keyset, os.urandom(32).hex(), os.urandom(32)) for one in amounts_sat]


def unblind(outputs: Sequence[BlankOutput], signatures: object, keys: Mapping[int, str]) -> list[Proof]:
    """The proofs that a mint's signatures make of the outputs; `keys` are the keyset's, by amount.

    Raises:
        BadSignature: signatures are missing, of other amounts, or by other keys; what a mint proves is checked.

    """
    if not isinstance(signatures, list) or len(signatures) != len(outputs):
        raise BadSignature("signatures", "the mint did not sign each output once")
    return [unblind_one(output, one, keys) for output, one in zip(outputs, signatures, strict=True)]


def unblind_one(output: BlankOutput, said: object, keys: Mapping[int, str]) -> Proof:
    """As `unblind`, of one output; one of amount 0 takes what the mint gives it. Raises BadSignature."""
    amount_sat = said.get("amount") if isinstance(said, dict) else None
    if not isinstance(said, dict) or type(amount_sat) is not int or amount_sat not in keys:
        raise BadSignature("signatures", "the mint's signature is malformed, or of an amount that it has no key for")
    if said.get("id") != output.id or (output.amount_sat and output.amount_sat != amount_sat):
        raise BadSignature("signatures", "the mint signed another amount, or by another keyset")
    key, signature = keys[amount_sat], _hex(said.get("C_"), "C_", 66)
    dleq = said.get("dleq")
    found = None
    if isinstance(dleq, dict):
        e, s = _hex(dleq.get("e"), "e", 64), _hex(dleq.get("s"), "s", 64)
        blind.check_dleq(output.b, signature, key, e, s)
        found = (e, s, output.r.hex())
    c = blind.unblinded(signature, output.r, key)
    return Proof(amount_sat, output.id, output.secret, c, found)


# Locks


@dataclass(frozen=True, slots=True)
class Lock:
    """Keys are x-only, 64 hex digits. `signers`, `quorum` of them, spend at any time; `refund` alone from `until_s`."""

    signers: tuple[str, ...]
    quorum: int = 1
    refund: str = ""
    until_s: int = 0
    is_sig_all: bool = True

    def secret(self, nonce: str) -> str:
        """The secret with this lock and nonce (64 hex digits), always the same text."""
        tags: list[list[str]] = [["sigflag", "SIG_ALL" if self.is_sig_all else "SIG_INPUTS"]]
        if len(self.signers) > 1:
            tags.append(["n_sigs", str(self.quorum)])
            tags.append(["pubkeys", *(f"02{key}" for key in self.signers[1:])])
        if self.refund:
            tags += [["locktime", str(self.until_s)], ["refund", f"02{self.refund}"]]
        return orjson.dumps(["P2PK", {"nonce": nonce, "data": f"02{self.signers[0]}", "tags": tags}]).decode()

    def check(self, secret: str) -> None:
        """Raises BadInput unless the secret has this very lock, as `secret` writes it."""
        try:
            nonce = str(orjson.loads(secret)[1]["nonce"])
        except (orjson.JSONDecodeError, LookupError, TypeError) as error:
            raise BadInput("proof.secret", "it has no lock") from error
        if len(nonce) != 64 or self.secret(nonce) != secret:
            raise BadInput("proof.secret", "it has another lock than the bond's")


def sig_all_digest(inputs: Sequence[Proof], outputs: Sequence[BlankOutput], quote: str = "") -> bytes:
    """What the signatures of a swap, or of a melt of `quote`, sign: the SHA-256 of all inputs and outputs (NUT-11)."""
    ins = "".join(one.secret + one.c for one in inputs)
    return _sha256(ins + "".join(f"{one.amount_sat}{one.b}" for one in outputs) + quote)


def loose_digest(inputs: Sequence[Proof], outputs: Sequence[BlankOutput]) -> bytes:
    """The same by mints that are older than NUT-11's present text. It leaves open which output has which amount."""
    return _sha256("".join(one.secret for one in inputs) + "".join(one.b for one in outputs))


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def witness(signatures: Sequence[bytes]) -> str:
    return orjson.dumps({"signatures": [one.hex() for one in signatures]}).decode()


def signed_inputs(keys: Keys, inputs: Sequence[Proof]) -> list[dict[str, Any]]:
    """Inputs whose lock is `keys` alone, without SIG_ALL: each signed by itself."""
    return [one.as_input(witness([keys.sign(_sha256(one.secret))])) for one in inputs]


def check_signature(public: str, digest: bytes, signature: bytes) -> None:
    """Raises BadSignature."""
    if not verify(public, digest, signature):
        raise BadSignature("signatures", f"not {public[:8]}'s, or of other outputs")


def _hex(value: object, name: str, digits: int) -> str:
    if not (isinstance(value, str) and len(value) == digits and set(value) <= set("0123456789abcdef")):
        raise BadInput(name, f"not {digits} lowercase hex digits")
    return value


def _keyset(value: object) -> str:
    if not (isinstance(value, str) and len(value) in (16, 66) and set(value) <= set("0123456789abcdef")):
        raise BadInput("keyset", "its id is not of version 00 or 01 (16 or 66 hex digits)")
    return value
