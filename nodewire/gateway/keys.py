"""Who asks: API keys, known by their SHA-256 and compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING

from nodewire.gateway.config import KeyConfig, secret_in

if TYPE_CHECKING:
    from collections.abc import Sequence

OPEN = KeyConfig(name="anybody", sha256="0" * 64)
"""Whose account it is where no keys are configured."""
_PREFIX = "sk-nw-"
MAX_CHARS = 512


def new_key() -> tuple[str, str]:
    """A new key, and what a file says of it."""
    made = _PREFIX + secrets.token_urlsafe(32)
    return made, sha256_of(made)


def sha256_of(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


class Keys:
    """The configured ones. Raises BadConfig: an environment variable that should hold one does not."""

    def __init__(self, keys: Sequence[KeyConfig]) -> None:
        self._known = [(key, key.sha256 or sha256_of(secret_in(key.env or ""))) for key in keys]

    def find(self, authorization: str) -> KeyConfig | None:
        """Whose the `Authorization` header is; None if nobody's. All are compared, whichever it is."""
        if not self._known:
            return OPEN
        scheme, _, key = authorization.partition(" ")
        said = sha256_of(key.strip()) if scheme.lower() == "bearer" and len(key) <= MAX_CHARS else ""
        found: KeyConfig | None = None
        for one, sha256 in self._known:
            if hmac.compare_digest(said, sha256):
                found = one
        return found
