"""Nostr keys: secp256k1 key pairs, their nsec and npub forms, and the file that a daemon keeps its key in.

https://github.com/nostr-protocol/nips/blob/master/01.md and 19.md; signatures are BIP-340.
"""

from __future__ import annotations

import os
import stat
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import secp256k1

from nodewire.errors import BadConfig, BadInput
from nodewire.nostr import bech32_text

if TYPE_CHECKING:
    from pathlib import Path

_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


class Keys:
    """One key pair. `public` is the x-only key as 64 hex digits."""

    __slots__ = ("_key", "public")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != 32 or not 0 < int.from_bytes(secret, "big") < _ORDER:
            raise BadInput("secret key", "not a secp256k1 scalar of 32 bytes")
        self._key = secp256k1.PrivateKey(secret, raw=True)
        self.public: str = self._key.pubkey.serialize()[1:].hex()

    @classmethod
    def generate(cls) -> Keys:
        while True:
            secret = os.urandom(32)
            if 0 < int.from_bytes(secret, "big") < _ORDER:
                return cls(secret)

    @classmethod
    def from_text(cls, text: str) -> Keys:
        """From an nsec or 64 hex digits.

        Raises:
            BadInput: it is neither.

        """
        text = text.strip()
        if text.startswith("nsec1"):
            return cls(_of_32_bytes(text, "secret key", "nsec"))
        try:
            return cls(bytes.fromhex(text))
        except ValueError as error:
            raise BadInput("secret key", "neither an nsec nor 64 hex digits") from error

    @classmethod
    def from_file(cls, path: Path) -> Keys:
        """The key in `path`; a new one is written there (mode 0600) if the file does not exist.

        Raises:
            BadConfig: others may read the file, or it holds no key.

        """
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise BadConfig(str(path), "others may read this key file; run: chmod 600 " + str(path)) from None
            try:
                return cls.from_text(path.read_text())
            except BadInput as error:
                raise BadConfig(str(path), error.reason) from error
        keys = cls.generate()
        with os.fdopen(descriptor, "w") as file:
            file.write(keys.nsec + "\n")
        return keys

    @property
    def secret(self) -> bytes:
        return bytes(self._key.private_key)

    @property
    def nsec(self) -> str:
        return bech32_text.encode("nsec", self.secret)

    @property
    def npub(self) -> str:
        return npub(self.public)

    def sign(self, digest: bytes) -> bytes:
        """The 64-byte BIP-340 signature of a 32-byte digest, with fresh auxiliary randomness."""
        return bytes(self._key.schnorr_sign(digest, None, raw=True))

    def shared_x(self, public: str) -> bytes:
        """The unhashed x coordinate (32 bytes) of this secret times `public`: ECDH as NIP-44 wants it.

        Raises:
            BadInput: `public` is no point of the curve.

        """
        try:
            # libsecp256k1's ecdh runs in constant time, unlike its tweak_mul; only its hash has to be replaced.
            return bytes(_point(public).ecdh(self.secret, hashfn=_X_ONLY))
        except Exception as error:  # the binding raises a bare Exception
            raise BadInput("public key", "not a point of secp256k1") from error

    def __repr__(self) -> str:
        return f"Keys({self.npub})"


def npub(public: str) -> str:
    """`public` (64 hex digits) for people to read."""
    return bech32_text.encode("npub", bytes.fromhex(public))


def from_npub(text: str) -> str:
    """64 hex digits from an npub or from themselves.

    Raises:
        BadInput: it is neither.

    """
    if text.startswith("npub1"):
        return _of_32_bytes(text, "public key", "npub").hex()
    if len(text) == 64 and all(c in "0123456789abcdef" for c in text):
        return text
    raise BadInput("public key", "neither an npub nor 64 lowercase hex digits")


def _of_32_bytes(text: str, field: str, form: str) -> bytes:
    try:
        prefix, octets = bech32_text.decode(text)
    except BadInput as error:
        raise BadInput(field, f"not a valid {form}: {error.reason}") from error
    if prefix != form or len(octets) != 32:
        raise BadInput(field, f"not a valid {form} of 32 bytes")
    return octets


def _copy_x(output: Any, x: Any, _y: Any, _data: Any) -> int:
    secp256k1.ffi.memmove(output, x, 32)
    return 1


_X_ONLY = secp256k1.ffi.callback("int (unsigned char *, const unsigned char *, const unsigned char *, void *)", _copy_x)


@lru_cache(maxsize=4096)
def _point(public: str) -> secp256k1.PublicKey:
    return secp256k1.PublicKey(b"\x02" + bytes.fromhex(public), raw=True)


def verify(public: str, digest: bytes, signature: bytes) -> bool:
    """Whether `signature` (64 bytes) is a BIP-340 signature of the 32-byte `digest` under `public`."""
    if len(signature) != 64 or len(digest) != 32:
        return False
    try:
        return bool(_point(public).schnorr_verify(digest, signature, None, raw=True))
    except Exception:  # noqa: BLE001 - the binding raises a bare Exception for a point that is not on the curve
        return False
