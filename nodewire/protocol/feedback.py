"""Feedback on a job (kind 7000): where a provider stands, and which chunk's payment is due. NIPS.md, "Feedback".

`payment-required` names a chunk, its signed root and its price: the provider's claim that the chunk is done and what
it computed, which the customer pays by one zap.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast, get_args

from nodewire.errors import BadEvent, BadTag
from nodewire.nostr import event as _event
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.protocol import kinds

Status = Literal["payment-required", "processing", "partial", "success", "error", "busy"]
_HEX32 = re.compile(r"^[0-9a-f]{64}\Z")
_NUMBER = re.compile(r"^[0-9]{1,15}\Z")


@dataclass(frozen=True, slots=True)
class Due:
    """One chunk's payment: `units` chunks' worth (a prefill may be several) of `amount_msat` in all."""

    chunk: int
    attempt: int
    units: int
    amount_msat: int
    root: str


@dataclass(frozen=True, slots=True)
class Feedback:
    """`id` and `provider` are the event's; `due` stands in `payment-required` only."""

    id: str
    provider: str
    request: str
    customer: str
    status: Status
    text: str = ""
    due: Due | None = None


def build(
    keys: Keys,
    request: str,
    customer: str,
    status: Status,
    *,
    created_at: int,
    text: str = "",
    due: Due | None = None,
) -> Event:
    """The feedback event; `text` is public, so nothing of the job's content goes there."""
    tags = [["e", request], ["p", customer], ["k", str(kinds.INFERENCE)], ["status", status, text[:200]]]
    if due is not None:
        tags.append(["amount", str(due.amount_msat)])
        tags.append(["chunk", str(due.chunk), str(due.attempt), str(due.units), due.root])
    return _event.sign(keys, kinds.FEEDBACK, created_at=created_at, tags=tags)


def parse(event: Event) -> Feedback:
    """The feedback in `event`, whose signature has been checked.

    Raises:
        BadEvent, BadTag: with the field at fault.
    """
    if event.kind != kinds.FEEDBACK:
        raise BadEvent("kind", f"{event.kind} is not feedback")
    request, customer = event.tag("e") or "", event.tag("p") or ""
    if not _HEX32.match(request):
        raise BadTag("e", "not an event id")
    if not _HEX32.match(customer):
        raise BadTag("p", "not a public key")
    status_tag = next((t for t in event.tags if t[0] == "status"), ())
    if len(status_tag) < 2 or status_tag[1] not in get_args(Status):
        raise BadTag("status", f"not one of {', '.join(get_args(Status))}")
    status = cast(Status, status_tag[1])
    due = _due(event) if status == "payment-required" else None
    return Feedback(
        id=event.id,
        provider=event.pubkey,
        request=request,
        customer=customer,
        status=status,
        text=status_tag[2][:200] if len(status_tag) > 2 else "",
        due=due,
    )


def _due(event: Event) -> Due:
    amount = event.tag("amount") or ""
    if not _NUMBER.match(amount):
        raise BadTag("amount", "not a number of msat")
    chunk = next((t for t in event.tags if t[0] == "chunk"), ())
    if len(chunk) != 5 or not all(_NUMBER.match(n) for n in chunk[1:4]) or not _HEX32.match(chunk[4]):
        raise BadTag("chunk", "not [chunk, number, attempt, units, root]")
    return Due(chunk=int(chunk[1]), attempt=int(chunk[2]), units=int(chunk[3]), amount_msat=int(amount), root=chunk[4])
