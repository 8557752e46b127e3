"""What a nutzap is known by in both books, and the proof that its author made its ecash. Pure.

nips/39-nutzaps.md. A nutzap is public before it is claimed, so anybody can put its proofs into an event of his own.
The nonces of its proofs' locks therefore commit to its author's key, by the salt that the event tells.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nodewire.errors import BadZap
from nodewire.pay.lightning import invoices
from nodewire.protocol.encoding.canonical import digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodewire.nostr.nips.nip61 import Nutzap

SALT = "salt"
_HEX64 = re.compile(r"[0-9a-f]{64}\Z", re.ASCII)


def preimage(secrets: Iterable[str]) -> str:
    """The 32 bytes (as hex) whose SHA-256 is a nutzap's payment hash: a digest of its proofs' secrets."""
    return digest("nodewire/nutzap/1", sorted(secrets))


def payment_hash(nutzap: Nutzap) -> str:
    """What both books know a nutzap by."""
    return invoices.hash_of(preimage(one.secret for one in nutzap.proofs))


def nonce(sender: str, salt: str, number: int) -> str:
    """That of the lock of the author's proof of this number, counted from 0."""
    return digest("nodewire/nutzap-nonce/1", [sender, salt, number])


def is_bound(nutzap: Nutzap) -> bool:
    """Whether its author made its proofs. Without a salt nobody knows.

    Raises:
        BadZap: its salt is malformed, or the proofs are not its author's.

    """
    salts = [tag[1] for tag in nutzap.tags if len(tag) > 1 and tag[0] == SALT]
    if not salts:
        return False
    if len(salts) > 1 or not _HEX64.match(salts[0]):
        raise BadZap(SALT, "not at most one, of 64 hex digits")
    if any(one.nonce != nonce(nutzap.sender, salts[0], number) for number, one in enumerate(nutzap.proofs)):
        raise BadZap(SALT, "another author made these proofs")
    return True
