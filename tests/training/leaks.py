"""What strangers can read of a training, searched for what they must not: windows of secrets in several encodings."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nodewire.nostr.nips import nip44, nip59
from nodewire.store import sealed_blobs

WINDOW = 16
DISTINCT = 6
"""Different bytes that a window must have to say anything: zeros and ones stand everywhere."""
_PRIME = np.uint64(0x100000001B3)


@dataclass
class Secrets:
    """What one process sealed, encrypted and wrapped while it was watched: all that must not be read."""

    plaintexts: list[bytes] = field(default_factory=list)
    """Of blobs."""
    texts: list[str] = field(default_factory=list)
    """Of NIP-44 messages."""
    keys: list[str] = field(default_factory=list)
    """Of blobs, as hex."""
    tickets: list[tuple[str, nip59.Event]] = field(default_factory=list)
    """For whom, and the wrap."""


@contextmanager
def watched() -> Iterator[Secrets]:
    """Note all that this process seals, whoever does it."""
    seen = Secrets()
    seal, new_key, encrypt, wrap = sealed_blobs.seal, sealed_blobs.new_key, nip44.encrypt, nip59.wrap

    def sealing(pieces: Iterable[bytes], key: str) -> Iterator[bytes]:
        whole = b"".join(pieces)
        seen.plaintexts.append(whole)
        return seal([whole], key)

    def keying() -> str:
        seen.keys.append(new_key())
        return seen.keys[-1]

    def encrypting(plaintext: str, key: bytes, **more: object) -> str:
        seen.texts.append(plaintext)
        return encrypt(plaintext, key, **more)  # type: ignore[arg-type]

    def wrapping(inner: nip59.Rumor, keys: object, recipient: str, **more: object) -> nip59.Event:
        made = wrap(inner, keys, recipient, **more)  # type: ignore[arg-type]
        seen.tickets.append((recipient, made))
        return made

    sealed_blobs.seal, sealed_blobs.new_key, nip44.encrypt, nip59.wrap = sealing, keying, encrypting, wrapping
    try:
        yield seen
    finally:
        sealed_blobs.seal, sealed_blobs.new_key, nip44.encrypt, nip59.wrap = seal, new_key, encrypt, wrap


def readable(folder: Path) -> dict[str, bytes]:
    """A relay's files: its database with the write-ahead log, and its blobs under their names."""
    files = [*folder.glob("relay.db*"), *(path for path in (folder / "blobs").rglob("*") if path.is_file())]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


class Searched:
    """Bytes that anybody has, made ready to be searched for many windows at once."""

    def __init__(self, dump: Mapping[str, bytes]) -> None:
        self._dump = dict(dump)
        self._hashes = np.unique(np.concatenate([_hashes(_windows(whole)) for whole in dump.values()]))
        self.bytes = sum(map(len, dump.values()))
        self.windows = 0
        """That were searched for."""

    def binary(self, secret: bytes) -> list[bytes]:
        """Windows of these bytes that stand in the dump: as they are, in hex, in base64.

        Every window's length of them is looked for at any place, so whatever is there of twice the length is found.
        """
        found = []
        for form in encodings(secret):
            rows = _windows(form)[::WINDOW]
            ordered = np.sort(rows, axis=1)
            rows = rows[(ordered[:, 1:] != ordered[:, :-1]).sum(1) + 1 >= DISTINCT]
            self.windows += len(rows)
            hashes = _hashes(rows)
            at = np.searchsorted(self._hashes, hashes).clip(max=len(self._hashes) - 1)
            hits = rows[self._hashes[at] == hashes]
            windows = {row.tobytes() for row in hits}  # equal hashes are not yet equal bytes
            found += [window for window in windows if any(window in whole for whole in self._dump.values())]
        return found

    def whole(self, secret: bytes) -> list[bytes]:
        """The secret, if it stands in the dump: as it is, in hex, in base64."""
        found = []
        for form in encodings(secret):
            self.windows += 1
            if any(form in whole for whole in self._dump.values()):
                found.append(form)
        return found

    def word(self, text: str) -> list[bytes]:
        """The text, if it stands in the dump by itself and not within a longer word or number."""
        self.windows += 1
        pattern = re.compile(rb"(?<![0-9A-Za-z+/.])" + re.escape(text.encode()) + rb"(?![0-9A-Za-z+/])")
        return [text.encode()] if any(pattern.search(whole) for whole in self._dump.values()) else []


def encodings(secret: bytes) -> list[bytes]:
    """The bytes, their hex, and the three base64 forms that they have within a longer text."""
    encoders: list[Callable[[bytes], bytes]] = [base64.b64encode, base64.urlsafe_b64encode]
    inner = [encode(secret[at : at + (len(secret) - at) // 3 * 3]) for encode in encoders for at in range(3)]
    return list(dict.fromkeys([secret, secret.hex().encode(), *inner]))


def loss_forms(loss: float) -> tuple[list[bytes], list[str]]:
    """A loss as bytes and as words: doubles and 64-bit numbers of either order, decimals and millionths."""
    micro = round(loss * 1e6)
    packed = [np.array([loss], order + "f8").tobytes() for order in "<>"]
    return packed, [str(micro), f"{loss:.6f}", repr(round(loss, 6)), repr(loss)]


def _windows(whole: bytes) -> np.ndarray:
    """All windows, one a row: a view."""
    row = np.frombuffer(whole, np.uint8)
    if len(row) < WINDOW:
        return np.zeros((0, WINDOW), np.uint8)
    return np.lib.stride_tricks.sliding_window_view(row, WINDOW)


def _hashes(windows: np.ndarray) -> np.ndarray:
    """64 bits of every window."""
    hashes = np.full(len(windows), 0xCBF29CE484222325, np.uint64)
    for at in range(WINDOW):
        hashes = (hashes ^ windows[:, at]) * _PRIME
    return hashes
