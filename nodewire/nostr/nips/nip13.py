"""NIP-13: proof of work.

https://github.com/nostr-protocol/nips/blob/master/13.md

An event's difficulty is the number of leading zero bits of its id. A miner commits to its target in the third element
of the `nonce` tag, so that luck at a lower target does not count as work at a higher one.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import orjson

from nodewire.errors import BadInput, BadTag, TimedOut
from nodewire.nostr.event import Event, Tags, serialize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TAG = "nonce"
MAX_TARGET_BITS = 64  # beyond what anybody mines; a larger number is a mistake


def difficulty(event_id: str) -> int:
    """The leading zero bits of an id (64 hex digits)."""
    return 256 - int(event_id, 16).bit_length()


def committed_target(event: Event) -> int:
    """The difficulty that the event's miner committed to, in bits; 0 without a nonce tag or without a commitment.

    Raises:
        BadTag: the commitment is not a decimal integer from 0 to 256.

    """
    tag = next((tag for tag in event.tags if tag[0] == TAG), ())
    if len(tag) < 3:
        return 0
    text = tag[2]
    if not (text.isascii() and text.isdecimal() and len(text) <= 3 and int(text) <= 256):
        raise BadTag(TAG, f"{text[:20]!r} is not a difficulty in bits")
    return int(text)


def check(event: Event, target_bits: int) -> None:
    """Check that the event carries work of at least `target_bits`, and meant to.

    Raises:
        BadTag: the id is too easy, or the committed target too low.

    """
    if target_bits <= 0:
        return
    if (bits := difficulty(event.id)) < target_bits:
        raise BadTag(TAG, f"difficulty {bits} is less than {target_bits}")
    if (committed := committed_target(event)) < target_bits:
        raise BadTag(TAG, f"committed target {committed} is less than {target_bits}")


def mine(
    public: str,
    kind: int,
    target_bits: int,
    *,
    created_at: int,
    content: str = "",
    tags: Iterable[Sequence[str]] = (),
    first_nonce: int = 0,
    max_attempts: int = 1 << 26,
) -> Tags:
    """The tags, with a nonce added, under which this event by `public` reaches `target_bits`.

    Sign with the same author, kind, time and content. It takes about 2**target_bits hashes; a caller with an event
    loop runs it in slices (`first_nonce`, `max_attempts`).

    Raises:
        BadInput: the target is not from 0 to 64 bits.
        TimedOut: none of `max_attempts` nonces from `first_nonce` on was good enough.

    """
    if not 0 <= target_bits <= MAX_TARGET_BITS:
        raise BadInput("target_bits", f"{target_bits} is not from 0 to {MAX_TARGET_BITS}")
    others: Tags = tuple(tuple(tag) for tag in tags if not tag or tag[0] != TAG)
    # The nonce tag comes last, so all that stands before the nonce is hashed once.
    whole = serialize(public, created_at, kind, (*others, (TAG, "", str(target_bits))), content)
    tail = b'","%d"]],%b]' % (target_bits, orjson.dumps(content))
    head = hashlib.sha256(whole[: -len(tail)])
    limit = 1 << (256 - target_bits)
    for nonce in range(first_nonce, first_nonce + max_attempts):
        attempt = head.copy()
        attempt.update(b"%d" % nonce + tail)
        if int.from_bytes(attempt.digest(), "big") < limit:
            return (*others, (TAG, str(nonce), str(target_bits)))
    raise TimedOut(TAG, f"{max_attempts} attempts did not reach {target_bits} bits")
