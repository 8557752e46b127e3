"""Quorum certificates (kind 8852) and fault evidence (kind 8853). Both prove themselves: anyone may publish them.

certificate  `c`, `n`, `x` as its votes have them; content = {"v": 1, "body": Body, "votes": [signed vote events]}
fault        `p` = the oracle, `c`; content = {"v": 1, "events": [two signed kind 8850 events]}: same author, same `t`,
             same `c`, same `n`, different `x`
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from nodewire.errors import BadEvent, BadQuorum, BadTag, NodewireError
from nodewire.nostr.event import Event, parse_unverified, sign
from nodewire.nostr.event import parse as parse_event
from nodewire.nostr.event import verify as verify_event
from nodewire.protocol import kinds
from nodewire.protocol.committee import oracle_round
from nodewire.protocol.committee.committee import MAX_ORACLES, Committee
from nodewire.protocol.committee.epoch_body import Body
from nodewire.protocol.encoding import tags

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys

KIND = kinds.CERTIFICATE
FAULT_KIND = kinds.EVIDENCE

__all__ = ["FAULT_KIND", "KIND", "Body", "Certificate", "Fault", "build", "build_fault", "parse", "parse_fault"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A body and the votes that certify it. Only `check` says that they do."""

    body: Body
    votes: tuple[Event, ...]
    digest: str = field(init=False)
    """The body's, once: every beat is compared with it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", self.body.digest())

    def check(self, committee: Committee) -> None:
        """Check that 2f+1 oracles of `committee` signed votes for this body and nothing else is among the votes.

        Raises:
            BadQuorum: another committee, an outsider's or malformed vote, one for something else, or too few.

        """
        digest, topic = self.digest, tags.epoch_topic(self.body.epoch)
        if self.body.committee != committee.digest():
            raise BadQuorum("committee", "the body names another committee")
        if len(self.body.inventories) < committee.quorum:
            raise BadQuorum("inventories", f"{len(self.body.inventories)} cited, {committee.quorum} needed")
        voters = set()
        for event in self.votes:
            try:
                vote = oracle_round.parse(event)
                verify_event(event)
            except NodewireError as error:
                raise BadQuorum("votes", "one is malformed or not signed by its author") from error
            if not isinstance(vote, oracle_round.Vote) or (vote.committee, vote.topic, vote.x) != (
                self.body.committee,
                topic,
                digest,
            ):
                raise BadQuorum("votes", "one is for something else")
            if committee.oracle(vote.oracle) is None:
                raise BadQuorum("votes", "one is an outsider's")
            voters.add(vote.oracle)
        if len(voters) < committee.quorum:
            raise BadQuorum("votes", f"of {len(voters)} oracles, {committee.quorum} needed")


@dataclass(frozen=True, slots=True)
class Fault:
    """Two contradicting events by the same oracle."""

    oracle: str
    committee: str
    topic: str
    first: Event
    second: Event


def build(keys: Keys, certificate: Certificate, *, created_at: int, expires_at_s: int | None = None) -> Event:
    body = certificate.body
    tags_ = [("c", body.committee), ("n", tags.epoch_topic(body.epoch)), ("x", certificate.digest)]
    tags_ += tags.expiration(expires_at_s)
    document = {"v": 1, "body": body.document(), "votes": [vote.as_dict() for vote in certificate.votes]}
    return sign(keys, KIND, created_at=created_at, content=_json(document), tags=tags_)


def parse(event: Event) -> Certificate:
    """The certificate in a verified event; its votes are neither verified nor counted until `check`.

    Raises:
        BadEvent, BadTag, BadQuorum, BadVersion: it is malformed.

    """
    tags.check_kind(event, KIND)
    document = tags.document(event, {"v", "body", "votes"})
    if not isinstance(document["votes"], list) or len(document["votes"]) > MAX_ORACLES:
        raise BadQuorum("votes", f"not a list of at most {MAX_ORACLES}")
    votes = tuple(parse_unverified(vote) for vote in document["votes"])
    certificate = Certificate(Body.from_document(document["body"]), votes)
    if tags.hex32(event, "x") != certificate.digest or tags.epoch_of(event) != certificate.body.epoch:
        raise BadTag("x", "the tags name another body")
    return certificate


def build_fault(keys: Keys, fault: Fault, *, created_at: int) -> Event:
    document = {"v": 1, "events": [fault.first.as_dict(), fault.second.as_dict()]}
    tags_ = [("p", fault.oracle), ("c", fault.committee), ("n", fault.topic)]
    return sign(keys, FAULT_KIND, created_at=created_at, content=_json(document), tags=tags_)


def contradiction(first: Event, second: Event) -> Fault:
    """The fault that two verified kind 8850 events prove. Raises BadEvent if they prove none."""
    for name in ("t", "c", "n"):
        if tags.text(first, name) != tags.text(second, name):
            raise BadEvent(name, "the two events differ in it and contradict nothing")
    if first.kind != oracle_round.KIND or second.kind != oracle_round.KIND or first.pubkey != second.pubkey:
        raise BadEvent("events", "not two kind 8850 events by one oracle")
    if tags.hex32(first, "x") == tags.hex32(second, "x"):
        raise BadEvent("x", "both say the same")
    if tags.text(first, "t") not in ("inventory", "proposal", "vote"):
        raise BadEvent("t", "nothing that may be said only once")
    first, second = sorted((first, second), key=lambda event: event.id)
    return Fault(first.pubkey, tags.hex32(first, "c"), tags.text(first, "n"), first, second)


def parse_fault(event: Event, committee: Committee) -> Fault:
    """The proven fault in a verified event: both embedded signatures are checked here.

    Raises:
        BadEvent, BadTag, BadVersion, BadSignature: it is malformed or proves nothing.
        BadQuorum: the accused is no oracle of `committee`.

    """
    tags.check_kind(event, FAULT_KIND)
    document = tags.document(event, {"v", "events"})
    events = document["events"]
    if not isinstance(events, list) or len(events) != 2:
        raise BadEvent("events", "not two")
    first, second = (parse_event(item) for item in events)
    fault = contradiction(first, second)
    if fault.committee != committee.digest() or committee.oracle(fault.oracle) is None:
        raise BadQuorum("p", "the accused is no oracle of this committee")
    return fault


def _json(document: dict[str, Any]) -> str:
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS).decode()
