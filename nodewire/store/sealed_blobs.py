"""Blobs that a store cannot read: ChaCha20-Poly1305 in segments, under a random key that is used for one blob only.

https://www.rfc-editor.org/rfc/rfc8439; segments as in STREAM, https://eprint.iacr.org/2015/189

    ciphertext = segment 0 ‖ segment 1 ‖ ...          a segment is 1 MiB of plaintext (the last may have less) and a tag
    nonce of segment i = 7 zero bytes ‖ u32 i, big-endian ‖ 1 for the last segment, else 0

So a segment that was moved, left out or cut off does not open, and a reader holds one segment at a time.
"""

from __future__ import annotations

import io
import secrets
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from nodewire.errors import BadCiphertext, BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SEGMENT_BYTES = 1 << 20
TAG_BYTES = 16
_MOST_SEGMENTS = 1 << 32


def new_key() -> str:
    """A fresh key, 64 hex digits."""
    return secrets.token_hex(32)


def sealed_bytes(plain_bytes: int) -> int:
    """How long the ciphertext of so many bytes is."""
    return plain_bytes + TAG_BYTES * max(1, -(-plain_bytes // SEGMENT_BYTES))


def seal(pieces: Iterable[bytes], key: str) -> Iterator[bytes]:
    """The ciphertext of `pieces` joined, segment by segment."""
    cipher, index, waiting = _cipher(key), 0, bytearray()
    for piece in pieces:
        waiting += piece
        while len(waiting) > SEGMENT_BYTES:  # one that is full waits: it may be the last
            yield cipher.encrypt(_nonce(index, last=False), bytes(waiting[:SEGMENT_BYTES]), None)
            del waiting[:SEGMENT_BYTES]
            index += 1
    yield cipher.encrypt(_nonce(index, last=True), bytes(waiting), None)


def unseal(source: Path | bytes, key: str) -> Iterator[bytes]:
    """The plaintext of a ciphertext, or of the file that holds it, in pieces of at most 1 MiB.

    Raises:
        BadCiphertext: it was not made with this key, or something of it is missing or was changed.

    """
    cipher, left = _cipher(key), size_of(source)
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
        index = 0
        while True:
            segment = file.read(SEGMENT_BYTES + TAG_BYTES)
            left -= len(segment)
            try:
                plain = cipher.decrypt(_nonce(index, last=left <= 0), segment, None)
            except InvalidTag as error:
                raise BadCiphertext("blob", f"segment {index} does not open") from error
            yield plain
            if left <= 0:
                return
            index += 1


def size_of(source: Path | bytes) -> int:
    return len(source) if isinstance(source, bytes) else source.stat().st_size


def _cipher(key: str) -> ChaCha20Poly1305:
    try:
        return ChaCha20Poly1305(bytes.fromhex(key))
    except ValueError as error:
        raise BadInput("key", "not 64 hex digits") from error


def _nonce(index: int, *, last: bool) -> bytes:
    if index >= _MOST_SEGMENTS:
        raise BadInput("blob", "more than 2**32 segments")
    return bytes(7) + index.to_bytes(4, "big") + bytes([last])
