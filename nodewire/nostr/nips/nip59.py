"""NIP-59: gift wrap. An unsigned rumor, sealed by its author, wrapped under a one-time key for one recipient.

https://github.com/nostr-protocol/nips/blob/master/59.md

Kind 1059 waits on a relay, so the times of wrap and seal are moved up to two days into the past. Kind 21059 only passes
through, and relays drop ephemeral events that look old, so its wrap carries the true time.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from nodewire.errors import BadEvent, BadSignature, TooLarge
from nodewire.nostr import event as _event
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip44

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nodewire.nostr.event import Event, Tags

SEAL = 13
GIFT_WRAP = 1_059
EPHEMERAL_GIFT_WRAP = 21_059
# Sealed and wrapped (each adds a third for base64, and padding) this still makes an event under 64 KB.
MAX_RUMOR_BYTES = 28_672
_TWO_DAYS_S = 172_800
_NO_SIG = "0" * 128


@dataclass(frozen=True, slots=True)
class Rumor:
    """An event that nobody signed; who sealed it is its author."""

    pubkey: str
    created_at: int
    kind: int
    tags: Tags
    content: str

    @property
    def id(self) -> str:
        return _event.event_id(self.pubkey, self.created_at, self.kind, self.tags, self.content)

    def to_json(self) -> str:
        return orjson.dumps(
            {
                "id": self.id,
                "pubkey": self.pubkey,
                "created_at": self.created_at,
                "kind": self.kind,
                "tags": [list(tag) for tag in self.tags],
                "content": self.content,
            }
        ).decode()


def rumor(public: str, kind: int, *, created_at: int, content: str = "", tags: Iterable[Sequence[str]] = ()) -> Rumor:
    """A rumor by `public`; `created_at` in unix seconds is its true time."""
    return Rumor(public, created_at, kind, tuple(tuple(tag) for tag in tags), content)


def parse_rumor(text: str) -> Rumor:
    """The rumor in JSON text; symmetric with `Rumor.to_json`. The id may be left out.

    Raises:
        TooLarge, BadEvent: as for an event; also if it is signed.
        BadSignature: the id is not the hash.

    """
    if (size := _event.utf8_bytes(text)) > MAX_RUMOR_BYTES:
        raise TooLarge("rumor", f"{size} bytes, at most {MAX_RUMOR_BYTES}")
    try:
        data = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadEvent("rumor", "not JSON") from error
    if not isinstance(data, dict):
        raise BadEvent("rumor", "not an object")
    if "sig" in data:
        raise BadEvent("sig", "a rumor is never signed")
    claimed = data.get("id")
    whole = _event.parse_unverified({**data, "id": _NO_SIG[:64] if claimed is None else claimed, "sig": _NO_SIG})
    parsed = Rumor(whole.pubkey, whole.created_at, whole.kind, whole.tags, whole.content)
    if claimed is not None and claimed != parsed.id:
        raise BadSignature("id", "not the hash of the rumor")
    return parsed


def seal(inner: Rumor, keys: Keys, recipient: str, *, now_s: int) -> Event:
    """The rumor encrypted to `recipient` and signed by its author, dated up to two days before `now_s`.

    Raises:
        TooLarge: the rumor's JSON has more than 28,672 bytes.
        BadEvent: the rumor's author is not `keys`.
        BadInput: `recipient` is no public key.

    """
    if inner.pubkey != keys.public:
        raise BadEvent("pubkey", "a rumor is sealed by its author")
    text = inner.to_json()
    if (size := _event.utf8_bytes(text)) > MAX_RUMOR_BYTES:
        raise TooLarge("rumor", f"{size} bytes, at most {MAX_RUMOR_BYTES}")
    content = nip44.encrypt(text, nip44.conversation_key(keys, recipient))
    return _event.sign(keys, SEAL, created_at=_before(now_s), content=content)


def wrap(
    inner: Rumor,
    keys: Keys,
    recipient: str,
    *,
    now_s: int,
    ephemeral: bool = False,
    tags: Iterable[Sequence[str]] = (),
) -> Event:
    """The rumor sealed by `keys` and wrapped for `recipient` under a one-time key.

    Args:
        inner: what the recipient reads.
        keys: the author's, which sign the seal.
        recipient: a public key, 64 hex digits.
        now_s: unix seconds, from which the dates of seal and wrap follow.
        ephemeral: kind 21059 with its true time instead of 1059 with a moved one.
        tags: more tags for the wrap, beside the recipient's `p` (an expiration, say); everybody can read them.

    Raises:
        As `seal`.

    """
    once = Keys.generate()
    content = nip44.encrypt(seal(inner, keys, recipient, now_s=now_s).to_json(), nip44.derive_key(once, recipient))
    return _event.sign(
        once,
        EPHEMERAL_GIFT_WRAP if ephemeral else GIFT_WRAP,
        created_at=now_s if ephemeral else _before(now_s),
        content=content,
        tags=[["p", recipient], *tags],
    )


def unwrap(wrapped: Event, keys: Keys) -> Rumor:
    """The rumor in a verified wrap for `keys`. Its `pubkey` is who sealed it.

    Raises:
        BadEvent, BadSignature, BadCiphertext, BadVersion, TooLarge: wrap, seal or rumor is wrong, or not for these
            keys.

    """
    if wrapped.kind not in (GIFT_WRAP, EPHEMERAL_GIFT_WRAP):
        raise BadEvent("kind", f"{wrapped.kind} is no gift wrap")
    sealed = _event.parse(nip44.decrypt(wrapped.content, nip44.derive_key(keys, wrapped.pubkey)))
    if sealed.kind != SEAL:
        raise BadEvent("kind", f"{sealed.kind} is no seal")
    # "Tags MUST always be empty", yet the same NIP speaks of expiration tags on seals.
    if any(tag[0] != "expiration" for tag in sealed.tags):
        raise BadEvent("tags", "a seal has none")
    inner = parse_rumor(nip44.decrypt(sealed.content, nip44.conversation_key(keys, sealed.pubkey)))
    if inner.pubkey != sealed.pubkey:
        raise BadSignature("pubkey", "the rumor names another author than the one who sealed it")
    return inner


def _before(now_s: int) -> int:
    return max(0, now_s - secrets.randbelow(_TWO_DAYS_S))
