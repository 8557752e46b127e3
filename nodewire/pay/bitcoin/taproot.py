"""Taproot outputs and their scripts: BIP-341, BIP-342, and the two descriptors that bonds use.

https://github.com/bitcoin/bips/blob/master/bip-0341.mediawiki and bip-0342. Keys are x-only, 32 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import bech32
from coincurve import PrivateKey, PublicKey

from nodewire.errors import BadInput
from nodewire.protocol.encoding.canonical import tagged_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

NUMS = bytes.fromhex("50929b74c1a04954b78b4b6035e97a5e078a5a0f28ec96d547bfee9ace803ac0")
"""The point of BIP-341 whose secret nobody can know: an output with it as its key is spent by a script alone."""
LEAF_VERSION = 0xC0
HRPS = {"bc": "bc", "tb": "tb", "tbs": "tb", "bcrt": "bcrt"}
"""What addresses of a network begin with, by the network's name in bolt11."""
_OP_CHECKSIG, _OP_CHECKSIGVERIFY, _OP_CHECKSIGADD = b"\xac", b"\xad", b"\xba"
_OP_NUMEQUAL, _OP_CHECKLOCKTIMEVERIFY = b"\x9c", b"\xb1"
_BECH32M = 0x2BC830A3
_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


@dataclass(frozen=True, slots=True)
class TaprootOutput:
    """An output's key (32 bytes) and what is committed to beside it: the leaves' scripts, in order."""

    internal: bytes
    leaves: tuple[bytes, ...]
    key: bytes
    is_odd: bool

    @property
    def script_pubkey(self) -> bytes:
        return b"\x51\x20" + self.key

    def address(self, network: str) -> str:
        """The address on a network, named as bolt11 does. Raises BadInput: there is no such network."""
        if network not in HRPS:
            raise BadInput("network", f"{network!r} is none of {', '.join(HRPS)}")
        data = [1, *(bech32.convertbits(self.key, 8, 5) or [])]
        hrp = HRPS[network]
        check = bech32.bech32_polymod(bech32.bech32_hrp_expand(hrp) + data + [0] * 6) ^ _BECH32M
        data += [check >> 5 * (5 - i) & 31 for i in range(6)]
        return f"{hrp}1{''.join(bech32.CHARSET[value] for value in data)}"

    def control_block(self, leaf: int) -> bytes:
        """What shows that the leaf of this number is committed to."""
        siblings = [leaf_hash(script) for n, script in enumerate(self.leaves) if n != leaf]
        return bytes([LEAF_VERSION | self.is_odd]) + self.internal + b"".join(siblings)


def leaf_hash(script: bytes, version: int = LEAF_VERSION) -> bytes:
    return tagged_hash("TapLeaf", bytes([version]) + compact_size(len(script)) + script)


def branch_hash(left: bytes, right: bytes) -> bytes:
    return tagged_hash("TapBranch", min(left, right) + max(left, right))


def output(internal: bytes, leaves: Sequence[bytes] = ()) -> TaprootOutput:
    """The output of this internal key with at most two leaves. Raises BadInput: it is no key."""
    if len(leaves) > 2:
        raise BadInput("leaves", "more than two")
    hashes = [leaf_hash(script) for script in leaves]
    root = branch_hash(*hashes) if len(hashes) == 2 else b"".join(hashes)
    key, is_odd = tweaked(internal, root)
    return TaprootOutput(internal, tuple(leaves), key, is_odd)


def tweaked(internal: bytes, root: bytes = b"") -> tuple[bytes, bool]:
    """The output's key for an internal key and a tree's root, and whether its y is odd. Raises BadInput."""
    try:
        point = PublicKey(b"\x02" + internal).add(tagged_hash("TapTweak", internal + root)).format()
    except (ValueError, TypeError) as error:
        raise BadInput("public key", "not the x coordinate of a point of secp256k1") from error
    return point[1:], point[0] == 3


def tweaked_secret(secret: bytes, root: bytes = b"") -> bytes:
    """The secret of the key that `tweaked` gives: what spends the output by its key."""
    key = PrivateKey(secret)
    point = key.public_key.format()
    scalar = int.from_bytes(secret, "big") if point[0] == 2 else _ORDER - int.from_bytes(secret, "big")
    tweak = int.from_bytes(tagged_hash("TapTweak", point[1:] + root), "big")
    return ((scalar + tweak) % _ORDER).to_bytes(32, "big")


def multi_a(quorum: int, keys: Sequence[bytes]) -> bytes:
    """The script of a descriptor's multi_a: as many signatures as `quorum`, by different ones of the keys."""
    if not 0 < quorum <= len(keys):
        raise BadInput("quorum", f"{quorum} of {len(keys)} keys")
    ops = [_OP_CHECKSIG, *[_OP_CHECKSIGADD] * (len(keys) - 1)]
    return b"".join(b"\x20" + key + op for key, op in zip(keys, ops, strict=True)) + push_number(quorum) + _OP_NUMEQUAL


def pk_after(key: bytes, at: int) -> bytes:
    """The script of the descriptor and_v(v:pk(key),after(at)): the key alone, from the lock time `at` on."""
    if not 0 < at < 2**31:
        raise BadInput("after", f"{at} is no lock time")
    return b"\x20" + key + _OP_CHECKSIGVERIFY + push_number(at) + _OP_CHECKLOCKTIMEVERIFY


def push_number(number: int) -> bytes:
    """The shortest push of a positive number."""
    if number <= 16:
        return bytes([0x50 + number])
    raw = number.to_bytes(number.bit_length() // 8 + 1, "little")
    return bytes([len(raw)]) + raw


def compact_size(number: int) -> bytes:
    if number < 0xFD:
        return bytes([number])
    if number <= 0xFFFF:
        return b"\xfd" + number.to_bytes(2, "little")
    return b"\xfe" + number.to_bytes(4, "little")
