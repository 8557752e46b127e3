"""NIP-44: encrypted payloads, version 2.

https://github.com/nostr-protocol/nips/blob/master/44.md

secp256k1 ECDH, HKDF-SHA256, a padding that hides most of the length, ChaCha20, HMAC-SHA256, base64. The payload stands
in a signed event: verify that event before decrypting.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from nodewire.errors import BadCiphertext, BadInput, BadVersion, TooLarge

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys

# Ours, so that the event around it stays under 64 KB. The NIP itself allows 2**32 - 1.
MAX_PLAINTEXT_BYTES = 40_960
_VERSION = 2
_NONCE_BYTES = 32
_MAC_BYTES = 32
_EXTENDED_FROM = 65_536  # plaintexts this long have a prefix of six bytes
_MIN_PAYLOAD_CHARS = 132
_MIN_DATA_BYTES = 99


class MessageKeys(NamedTuple):
    chacha_key: bytes  # 32 bytes
    chacha_nonce: bytes  # 12 bytes
    hmac_key: bytes  # 32 bytes


def derive_key(keys: Keys, public: str) -> bytes:
    """The 32-byte conversation key between `keys` and `public`; the same from either side.

    Raises:
        BadInput: `public` is no point of the curve.

    """
    return hmac.digest(b"nip44-v2", keys.shared_x(public), hashlib.sha256)


@lru_cache(maxsize=1024)
def conversation_key(keys: Keys, public: str) -> bytes:
    """As `derive_key`, remembered: for keys that talk again. One-time keys use `derive_key`."""
    return derive_key(keys, public)


def message_keys(key: bytes, nonce: bytes) -> MessageKeys:
    """The keys of one message, from the conversation's key and the message's nonce (32 bytes each)."""
    if len(key) != 32 or len(nonce) != _NONCE_BYTES:
        raise BadInput("nonce" if len(key) == 32 else "conversation key", "not 32 bytes")
    okm = HKDFExpand(SHA256(), length=76, info=nonce).derive(key)
    return MessageKeys(okm[:32], okm[32:44], okm[44:])


def padded_bytes(length: int) -> int:
    """The length that a plaintext of `length` >= 1 bytes is padded to."""
    if length <= 32:
        return 32
    power = 1 << (length - 1).bit_length()
    chunk = 32 if power <= 256 else power // 8
    return chunk * ((length - 1) // chunk + 1)


def encrypt(plaintext: str, key: bytes, *, nonce: bytes | None = None, max_bytes: int = MAX_PLAINTEXT_BYTES) -> str:
    """The payload (base64) of `plaintext` under a conversation key. `nonce` is fresh randomness unless a test gives it.

    Raises:
        BadInput: the plaintext is empty or not valid Unicode.
        TooLarge: it has more than `max_bytes` of UTF-8.

    """
    try:
        data = plaintext.encode()
    except UnicodeEncodeError as error:
        raise BadInput("plaintext", "not valid Unicode") from error
    if not data:
        raise BadInput("plaintext", "empty")
    if len(data) > max_bytes:
        raise TooLarge("plaintext", f"{len(data)} bytes, at most {max_bytes}")
    nonce = os.urandom(_NONCE_BYTES) if nonce is None else nonce
    chacha_key, chacha_nonce, hmac_key = message_keys(key, nonce)
    padded = _prefix(len(data)) + data + bytes(padded_bytes(len(data)) - len(data))
    ciphertext = _chacha20(chacha_key, chacha_nonce, padded)
    mac = hmac.digest(hmac_key, nonce + ciphertext, hashlib.sha256)
    return base64.b64encode(bytes([_VERSION]) + nonce + ciphertext + mac).decode()


def decrypt(payload: str, key: bytes, *, max_bytes: int = MAX_PLAINTEXT_BYTES) -> str:
    """The plaintext of a payload under a conversation key.

    Raises:
        BadVersion: not version 2.
        TooLarge: the plaintext would have more than `max_bytes`; checked before anything is decoded.
        BadCiphertext: malformed, or not encrypted with this key.

    """
    nonce, ciphertext, mac = _unpack(payload, max_bytes)
    chacha_key, chacha_nonce, hmac_key = message_keys(key, nonce)
    if not hmac.compare_digest(hmac.digest(hmac_key, nonce + ciphertext, hashlib.sha256), mac):
        raise BadCiphertext("mac", "not made with this key")
    data = _unpad(_chacha20(chacha_key, chacha_nonce, ciphertext))
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadCiphertext("plaintext", "not UTF-8") from error


def _prefix(length: int) -> bytes:
    return length.to_bytes(2, "big") if length < _EXTENDED_FROM else b"\0\0" + length.to_bytes(4, "big")


def _unpad(padded: bytes) -> bytes:
    length, start = int.from_bytes(padded[:2], "big"), 2
    if length == 0:
        length, start = int.from_bytes(padded[2:6], "big"), 6
        if length < _EXTENDED_FROM:
            raise BadCiphertext("padding", "a length of zero, or a long form of a short one")
    if len(padded) != start + padded_bytes(length):
        raise BadCiphertext("padding", "not the padding of its length")
    return padded[start : start + length]


def _unpack(payload: str, max_bytes: int) -> tuple[bytes, bytes, bytes]:
    if payload.startswith("#"):
        raise BadVersion("payload", "of a later version")
    largest = 1 + _NONCE_BYTES + len(_prefix(max_bytes)) + padded_bytes(max_bytes) + _MAC_BYTES
    if len(payload) > 4 * ((largest + 2) // 3):
        raise TooLarge("payload", f"{len(payload)} characters hold more than {max_bytes} bytes of plaintext")
    if len(payload) < _MIN_PAYLOAD_CHARS:
        raise BadCiphertext("payload", f"{len(payload)} characters, at least {_MIN_PAYLOAD_CHARS}")
    try:
        data = base64.b64decode(payload, validate=True)
    except (ValueError, binascii.Error) as error:
        raise BadCiphertext("payload", "not base64") from error
    if data[0] != _VERSION:
        raise BadVersion("payload", f"version {data[0]}, only {_VERSION} is spoken")
    if len(data) < _MIN_DATA_BYTES:
        raise BadCiphertext("payload", f"{len(data)} bytes, at least {_MIN_DATA_BYTES}")
    return data[1:33], data[33:-_MAC_BYTES], data[-_MAC_BYTES:]


def _chacha20(key: bytes, nonce: bytes, data: bytes) -> bytes:
    # cryptography's 16-byte nonce is RFC 8439's 32-bit counter (0 here) and then its 96-bit nonce.
    cipher = Cipher(ChaCha20(key, bytes(4) + nonce), mode=None).encryptor()
    return cipher.update(data) + cipher.finalize()
