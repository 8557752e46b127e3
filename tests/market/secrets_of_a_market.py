"""What a market's participants must keep to themselves, and where it is looked for: in every form that it may have."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nodewire.nostr.keys import Keys

SECRET_FILES = re.compile(r"(\.nsec|\.token|\.nwc|\.lnbits|/oracle-\d+/(key|share))$")
"""Files that are for secrets: they alone may have them."""
SERVICES = re.compile(r"/simnet\.db")
"""The wallet service's own book, which has its accounts' tokens and preimages: it is a service's, and no nodewire's."""
_HEX32 = re.compile(rb"[0-9a-f]{64}")
_LEAST = 8


@dataclass
class Needles:
    """Secrets by a name that may be told, each in the forms that a program might write it in."""

    forms: dict[str, set[bytes]] = field(default_factory=dict)

    def add(self, name: str, *secrets: str | bytes) -> None:
        """A secret. Texts of hex digits are looked for as raw bytes and as base64, too."""
        forms = self.forms.setdefault(name, set())
        for secret in secrets:
            raw = secret.encode() if isinstance(secret, str) else secret
            assert len(raw) >= _LEAST, name
            plain = {raw, bytes.fromhex(raw.decode())} if _HEX32.fullmatch(raw) else {raw}
            for one in plain:
                forms |= {one, one.hex().encode(), base64.b64encode(one).rstrip(b"="), repr(one)[2:-1].encode()}
                forms |= {base64.urlsafe_b64encode(one).rstrip(b"="), one.hex().upper().encode()}

    def add_key(self, name: str, keys: Keys) -> None:
        """A Nostr key, also as nsec."""
        self.add(name, keys.secret.hex(), keys.secret, keys.nsec)

    def within(self, places: Mapping[str, bytes]) -> list[str]:
        """Which secret stands in which place; none of them is quoted."""
        return [
            f"{name} in {place}"
            for place, blob in places.items()
            for name, forms in self.forms.items()
            if any(form in blob for form in forms)
        ]


def files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """All files below, but those that are for secrets, and the wallet service's."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not SECRET_FILES.search(str(path)) and not SERVICES.search(str(path)):
            yield str(path.relative_to(folder)), path.read_bytes()


def preimages(book: Path, hashes: Iterable[str]) -> dict[str, str]:
    """The preimages of these payment hashes in a simulated network's book, as it lies on disk: the 64 hex digits that
    open one. Its service alone may open the book while it runs.
    """
    lies = b"\n".join(path.read_bytes() for path in sorted(book.parent.glob(f"{book.name}*")))
    wanted, found = set(hashes), {}
    for digits in set(_HEX32.findall(lies)):
        opened = hashlib.sha256(bytes.fromhex(digits.decode())).hexdigest()
        if opened in wanted:
            found[opened] = digits.decode()
    return found
