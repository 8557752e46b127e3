"""NIP-04: encrypted content as it was before NIP-44, for wallets that speak nothing else.

https://github.com/nostr-protocol/nips/blob/master/04.md

AES-256-CBC under the shared x coordinate, with no MAC: only the signature of the event around it says who wrote it.
Verify that event before decrypting, and use NIP-44 wherever the other side can.
"""

from __future__ import annotations

import base64
import binascii
import os
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC
from cryptography.hazmat.primitives.padding import PKCS7

from nodewire.errors import BadCiphertext, TooLarge

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys

_BLOCK_BYTES = 16
_IV = "?iv="


def encrypt(plaintext: str, keys: Keys, public: str, *, iv: bytes | None = None) -> str:
    """The content of an event from `keys` to `public`. `iv` (16 bytes) is fresh randomness unless a test gives it.

    Raises:
        BadInput: `public` is no point of the curve.

    """
    iv = os.urandom(_BLOCK_BYTES) if iv is None else iv
    padder = PKCS7(8 * _BLOCK_BYTES).padder()
    padded = padder.update(plaintext.encode()) + padder.finalize()
    cipher = Cipher(AES(keys.shared_x(public)), CBC(iv)).encryptor()
    ciphertext = cipher.update(padded) + cipher.finalize()
    return base64.b64encode(ciphertext).decode() + _IV + base64.b64encode(iv).decode()


def decrypt(content: str, keys: Keys, public: str, *, max_bytes: int) -> str:
    """The plaintext of an event's content.

    Raises:
        TooLarge: the plaintext would have more than `max_bytes`; checked before anything is decoded.
        BadCiphertext: malformed, or not encrypted between these keys.
        BadInput: `public` is no point of the curve.

    """
    if len(content) > 4 * (max_bytes // 3 + _BLOCK_BYTES):
        raise TooLarge("content", f"{len(content)} characters hold more than {max_bytes} bytes of plaintext")
    ciphertext, found, iv = content.partition(_IV)
    try:
        data, start = base64.b64decode(ciphertext, validate=True), base64.b64decode(iv, validate=True)
    except (ValueError, binascii.Error) as error:
        raise BadCiphertext("content", "not base64") from error
    if not found or len(start) != _BLOCK_BYTES or not data or len(data) % _BLOCK_BYTES:
        raise BadCiphertext("content", "not whole blocks and an initialization vector")
    cipher = Cipher(AES(keys.shared_x(public)), CBC(start)).decryptor()
    unpadder = PKCS7(8 * _BLOCK_BYTES).unpadder()
    try:
        return (unpadder.update(cipher.update(data) + cipher.finalize()) + unpadder.finalize()).decode()
    except ValueError as error:  # UnicodeDecodeError is one
        raise BadCiphertext("content", "not encrypted between these keys") from error
