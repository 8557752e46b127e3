"""NIP-B7: Blossom. Who may do what on a blob server (kind 24242), and which servers an author uses (kind 10063).

https://github.com/nostr-protocol/nips/blob/master/B7.md
https://github.com/hzrd149/blossom/blob/master/buds/11.md (tokens) and 03.md (server list)
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Literal, get_args

from nodewire.errors import BadEvent, BadInput, BadTag, TooLarge
from nodewire.nostr import event as _event
from nodewire.nostr.event import Event, sign
from nodewire.nostr.nips import nip40

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodewire.nostr.keys import Keys

TOKEN = 24_242
SERVERS = 10_063
SCHEME = "Nostr "
MAX_SERVERS = 64
SKEW_S = 60  # "created_at MUST be in the past", with room for a client's clock that is ahead
_HEX = frozenset("0123456789abcdef")

Verb = Literal["get", "upload", "list", "delete", "media"]


def build_token(
    keys: Keys,
    verb: Verb,
    *,
    now_s: int,
    expires_at_s: int,
    hashes: Iterable[str] = (),
    servers: Iterable[str] = (),
    content: str = "",
) -> Event:
    """A token by which `keys` allow `verb` until `expires_at_s`.

    Args:
        keys: of whoever allows it, and signs.
        verb: what it allows, one thing alone.
        now_s: unix seconds at which it begins to hold.
        expires_at_s: unix seconds after which it does not hold any more.
        hashes: the blobs (sha256, 64 hex digits) it is good for; none means any.
        servers: the domain names it is good for; none means any, so who sees the token may use it elsewhere.
        content: what it is for, in words.

    """
    tags = [["t", verb], nip40.build(expires_at_s)]
    tags += [["x", _sha256(digest)] for digest in hashes]
    tags += [["server", name.lower()] for name in servers]
    return sign(keys, TOKEN, created_at=now_s, content=content or verb.capitalize(), tags=tags)


def check_token(event: Event, *, verb: Verb, now_s: int, sha256: str | None = None, server: str | None = None) -> None:
    """Check a verified event as a token for `verb`.

    Args:
        event: its id and signature have been checked.
        verb: what the request does.
        now_s: the server's clock, unix seconds.
        sha256: the blob that the request names. Without one, the token's `x` tags do not matter (`list`).
        server: the domain name of the server that checks.

    Raises:
        BadEvent: wrong kind, or dated in the future.
        BadTag: expired, another verb, another server's, or another blob's. Every verb but `get` needs the blob named.

    """
    if verb not in get_args(Verb):
        raise BadInput("verb", f"{verb} is not Blossom's")
    if event.kind != TOKEN:
        raise BadEvent("kind", f"{event.kind} instead of {TOKEN}")
    if event.created_at > now_s + SKEW_S:
        raise BadEvent("created_at", "in the future")
    expires_at_s = nip40.parse(event.tags)
    if expires_at_s is None or expires_at_s <= now_s:
        raise BadTag(nip40.TAG, "missing or past")
    if event.tag("t") != verb:
        raise BadTag("t", f"is not {verb}")
    servers = event.values("server")
    if servers and (server is None or server.lower() not in servers):
        raise BadTag("server", "names other servers")
    hashes = event.values("x")
    if sha256 is not None and sha256 not in hashes and (hashes or verb != "get"):
        raise BadTag("x", "does not name the blob")


def to_header(token: Event) -> str:
    """The token as the value of the HTTP header `Authorization`."""
    return SCHEME + base64.urlsafe_b64encode(token.to_json().encode()).rstrip(b"=").decode()


def from_header(value: str) -> Event:
    """The verified event in the value of an `Authorization` header; symmetric with `to_header`.

    Plain base64 is read as well, as clients from before BUD-11 send it.

    Raises:
        TooLarge: more than an event may have.
        BadInput, BadEvent, BadSignature: it is not the header of a signed event.

    """
    if len(value) > len(SCHEME) + 4 * _event.MAX_BYTES // 3 + 4:
        raise TooLarge("Authorization", f"{len(value)} characters")
    scheme, encoded = value[: len(SCHEME)], value[len(SCHEME) :].strip().rstrip("=")
    if scheme.lower() != SCHEME.lower():
        raise BadInput("Authorization", "not of the scheme Nostr")
    try:
        padded = encoded.translate(_URL_SAFE) + "=" * (-len(encoded) % 4)
        return _event.parse(base64.b64decode(padded, validate=True))
    except (binascii.Error, ValueError) as error:
        raise BadInput("Authorization", "not base64") from error


def build_servers(keys: Keys, urls: Iterable[str], *, created_at: int) -> Event:
    """The list of the blob servers that `keys` use, the preferred one first."""
    return sign(keys, SERVERS, created_at=created_at, tags=[["server", url] for url in urls])


def parse_servers(event: Event) -> tuple[str, ...]:
    """The servers' URLs in a verified list, the preferred one first; entries that are no http URL are left out.

    Raises:
        BadEvent: not kind 10063.
        TooLarge: more than 64 servers.

    """
    if event.kind != SERVERS:
        raise BadEvent("kind", f"{event.kind} instead of {SERVERS}")
    urls = event.values("server")
    if len(urls) > MAX_SERVERS:
        raise TooLarge("server", f"{len(urls)} servers, at most {MAX_SERVERS}")
    return tuple(url for url in urls if url.startswith(("https://", "http://")))


_URL_SAFE = str.maketrans("-_", "+/")


def _sha256(digest: str) -> str:
    if len(digest) != 64 or not _HEX.issuperset(digest):
        raise BadTag("x", "not 64 lowercase hex digits")
    return digest
