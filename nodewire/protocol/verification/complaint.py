"""Complaints (kind 8853 with `e`): a provider claimed payment for a chunk and did not commit to it in time.

`p` = the accused, `c` = the committee, `e` = the request; content = {"v": 1, "events": [the claim, a signed 7000]}.
By the job's customer. A claim's roots are certified up to `CLAIMED_EPOCHS` after the epoch in which it was signed, or
what was paid for them could never be judged. A claim's date is the accused's own word, so no complaint is too late by
it: the accused has as long again from the complaint on. nips/17-commitments.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from nodewire.errors import BadEvent, BadTag
from nodewire.nostr.event import Event, parse_unverified, sign
from nodewire.nostr.event import verify as verify_event
from nodewire.protocol import kinds
from nodewire.protocol.encoding import canonical, tags
from nodewire.protocol.job import feedback

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.job.feedback import Due

KIND = kinds.EVIDENCE
CLAIMED_EPOCHS = 8
"""So many epochs after the one in which it is signed, a claim's roots must be certified."""
HEARD_EPOCHS = 4_096
"""No older is a claim that is complained about: what was certified then may be kept no longer."""
ENOUGH_EPOCHS = 4
"""So many of these the committee must have certified at all, or nobody is to blame."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """`claim` is the accused `provider`'s signed word, `due` what stands in it; `created_at` is the complaint's."""

    customer: str
    committee: str
    request: str
    provider: str
    claim: Event
    due: Due
    created_at: int

    @property
    def key(self) -> str:
        """The case's name, 64 hex digits."""
        return case_key(self.provider, self.request, self.claim.id)

    def last_epoch(self, committee: Committee) -> int:
        """The last epoch whose certificate may hold the claim's roots, or they are withheld."""
        return committee.epoch_at(max(self.created_at, self.claim.created_at) * 1000) + CLAIMED_EPOCHS


def case_key(provider: str, request: str, claim: str) -> str:
    """The name of the case about a claim (an event id). Not that of a sample: what is drawn late is judged as well."""
    return canonical.digest("nodewire/complaint/1", [provider, request, claim])


def build(keys: Keys, committee: str, claim: Event, *, created_at: int) -> Event:
    said = feedback.parse(claim)
    tags_ = [("p", said.provider), ("c", committee), ("e", said.request)]
    content = orjson.dumps({"v": 1, "events": [claim.as_dict()]}, option=orjson.OPT_SORT_KEYS).decode()
    return sign(keys, KIND, created_at=created_at, content=content, tags=tags_)


def parse(event: Event) -> Complaint:
    """The complaint in a verified event; the claim's signature is checked here.

    Raises:
        BadEvent, BadTag, BadVersion, BadSignature: it is malformed, or the claim is not the accused's.

    """
    tags.check_kind(event, KIND)
    sent = tags.document(event, {"v", "events"})["events"]
    if not isinstance(sent, list) or len(sent) != 1:
        raise BadEvent("events", "not one claim")
    claim = parse_unverified(sent[0])
    said = feedback.parse(claim)
    if said.due is None:
        raise BadEvent("events", "not a claim of payment")
    provider, request = tags.hex32(event, "p"), tags.hex32(event, "e")
    if (said.provider, said.request, said.customer) != (provider, request, event.pubkey):
        raise BadTag("p", "the claim is another's, or of another job")
    verify_event(claim)
    return Complaint(event.pubkey, tags.hex32(event, "c"), request, provider, claim, said.due, event.created_at)
