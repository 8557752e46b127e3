"""What this relay does not take: small pure functions, each saying whether to refuse an event and in which words.

An operator's own policy is one more function in the list. The words start with one of NIP-01's prefixes, as clients
read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from nodewire.errors import BadTag
from nodewire.nostr.event import Event
from nodewire.nostr.nips import nip40
from nodewire.nostr.nips.nip01 import is_ephemeral

if TYPE_CHECKING:
    from relay.limits import Config

Verdict = tuple[bool, str]
"""(refuse, reason)."""

PASS: Verdict = (False, "")

NOT_FOR_RELAYS = {
    13: "a seal travels inside a wrap",
    9734: "a zap request goes to the LNURL callback",
    22242: "authenticate with an AUTH message",
    24242: "a Blossom authorization goes into an HTTP header",
    27235: "an HTTP authorization goes into an HTTP header",
}
REPOSTS = frozenset({6, 16})


@dataclass(frozen=True, slots=True)
class Visit:
    """The circumstances an event comes in: our clock, who has authenticated on its connection, the relay's settings."""

    now_s: int
    authed: Set[str]
    config: Config


Policy = Callable[[Event, Visit], Verdict]


def is_of_a_kind_for_relays(event: Event, visit: Visit) -> Verdict:
    """Kinds that prove something to one receiver must not be published, or anyone could replay them."""
    reason = NOT_FOR_RELAYS.get(event.kind)
    return (True, f"blocked: kind {event.kind} is not for relays, {reason}") if reason else PASS


def has_bounded_tags(event: Event, visit: Visit) -> Verdict:
    limits = visit.config.limits
    if len(event.tags) > limits.tags:
        return True, f"invalid: {len(event.tags)} tags, at most {limits.tags}"
    for tag in event.tags:
        if len(tag) > 1 and len(tag[0]) == 1 and len(tag[1].encode()) > limits.tag_value_bytes:
            return True, f"invalid: tag {tag[0]} is longer than {limits.tag_value_bytes} bytes"
    return PASS


def is_not_ahead_of_time(event: Event, visit: Visit) -> Verdict:
    if event.created_at > visit.now_s + visit.config.limits.future_s:
        return True, "invalid: created_at is too far in the future"
    return PASS


def is_fresh_if_ephemeral(event: Event, visit: Visit) -> Verdict:
    if is_ephemeral(event.kind) and event.created_at < visit.now_s - visit.config.limits.ephemeral_age_s:
        return True, "invalid: an ephemeral event of the past"
    return PASS


def has_not_expired(event: Event, visit: Visit) -> Verdict:
    """NIP-40."""
    try:
        return (True, "invalid: the event has expired") if nip40.is_expired(event.tags, visit.now_s) else PASS
    except BadTag as error:
        return True, f"invalid: {error}"


def lasts_if_evidence(event: Event, visit: Visit) -> Verdict:
    """Faults and receipts are needed for as long as anybody asks.

    Deletions are for as long as what they name may come again, a round's events only for their time.
    """
    if event.kind in visit.config.lasting_kinds and event.tag(nip40.TAG) is not None:
        return True, f"blocked: kind {event.kind} must not expire"
    return PASS


def is_by_its_author_if_protected(event: Event, visit: Visit) -> Verdict:
    """NIP-70: an event with a "-" tag comes from its author or not at all, also not inside a repost."""
    if any(tag[0] == "-" for tag in event.tags):
        if not visit.authed:
            return True, "auth-required: only its author may publish a protected event"
        if event.pubkey not in visit.authed:
            return True, "restricted: only its author may publish a protected event"
    if event.kind in REPOSTS and _embeds_a_protected_event(event.content):
        return True, "blocked: a repost of a protected event"
    return PASS


POLICIES: tuple[Policy, ...] = (
    is_of_a_kind_for_relays,
    has_bounded_tags,
    is_not_ahead_of_time,
    is_fresh_if_ephemeral,
    has_not_expired,
    lasts_if_evidence,
    is_by_its_author_if_protected,
)


def refusal(event: Event, visit: Visit, policies: Sequence[Policy]) -> str | None:
    """The first policy's reason to refuse `event`, or None."""
    for policy in policies:
        refuse, reason = policy(event, visit)
        if refuse:
            return reason
    return None


def _embeds_a_protected_event(content: str) -> bool:
    try:
        inner = orjson.loads(content)
    except orjson.JSONDecodeError:
        return False
    tags = inner.get("tags") if isinstance(inner, dict) else None
    return isinstance(tags, list) and ["-"] in tags
