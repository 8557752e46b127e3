"""Job requests (kind 8843) and the tickets that open them. nips/11-job-requests.md.

The request is public: it carries the whole plan and what re-deriving the plan needs, no prompt and no parameters.
Those travel in tickets (rumors 28841 in ephemeral gift wraps, one to each provider) and over the wire.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import orjson
from pydantic import Field

from nodewire.errors import BadEvent, BadInput, BadTag, BadVersion, TooLarge
from nodewire.nostr.event import Event, parse_unverified, verify
from nodewire.protocol import kinds
from nodewire.protocol.encoding import canonical, tags
from nodewire.protocol.encoding.schema import Count, Hex32, Name, Schema
from nodewire.protocol.job.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.protocol.tensors.frame import Array, Frame

MAX_PARTIALS = 64
_ADDRESS = re.compile(rf"{kinds.MANIFEST}:[0-9a-f]{{64}}:[a-z0-9][a-z0-9._-]{{0,63}}")


@dataclass(frozen=True, slots=True)
class Request:
    """A parsed job request. `id`, `customer` and `created_at` are the event's."""

    id: str
    customer: str
    created_at: int
    kind: int
    plan: Plan
    manifest_address: str
    """`38840:<author>:<name>`; the plan cites the manifest itself by digest."""
    certificate_event: str
    """Id of the QC event (8852) whose body the plan cites."""
    partials: tuple[Event, ...]
    """Beacon partials (8851), enough to combine; their signatures are not checked."""
    bid_msat: int
    relays: tuple[str, ...]
    ticket: str
    """Ticket.seal() of every ticket of the job."""

    def signed_partials(self) -> tuple[Event, ...]:
        """The partials, of which ids and signatures have been checked.

        To check so many takes longer than all else about a request, and a stranger's costs that nothing: so it is done
        when all else is right. Raises BadSignature.
        """
        for partial in self.partials:
            verify(partial)
        return self.partials


def tags_and_content(
    plan: Plan,
    *,
    manifest_address: str,
    certificate_event: str,
    partials: Sequence[Event],
    relays: Sequence[str],
    ticket: str,
) -> tuple[list[list[str]], str]:
    """Tags and content of a request's event; the customer adds the NIP-13 nonce and signs."""
    tags = [
        ["a", manifest_address],
        ["x", plan.manifest],
        ["e", certificate_event, relays[0] if relays else "", "certificate"],
        ["snapshot", plan.snapshot],
        ["committee", plan.committee],
        ["bid", str(plan.terms.max_total_msat)],
        ["ticket", ticket],
        ["relays", *relays],
        *(["p", member] for member in plan.providers()),
    ]
    content = orjson.dumps({"v": 1, "plan": plan.document(), "partials": [p.as_dict() for p in partials]})
    return tags, content.decode()


def _parse_content(text: str) -> tuple[Plan, list[object]]:
    """The plan, and the beacon partials as they stand in a request's content."""
    if len(text) > Plan.MAX_BYTES * 2:
        raise TooLarge("content", f"{len(text)} bytes, at most {Plan.MAX_BYTES * 2}")
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadEvent("content", "not JSON") from error
    if not isinstance(content, dict) or set(content) != {"v", "plan", "partials"}:
        raise BadEvent("content", "not {v: 1, plan, partials}")
    BadVersion.check(content["v"], 1)
    partials = content["partials"]
    if not isinstance(partials, list) or len(partials) > MAX_PARTIALS:
        raise BadEvent("content.partials", f"not a list of at most {MAX_PARTIALS}")
    return Plan.from_document(content["plan"]), partials


def parse(event: Event) -> Request:
    """The request in `event`, whose signature has been checked by the caller.

    Raises:
        BadEvent, BadTag, BadPlan, BadVersion, TooLarge: with the field at fault.

    """
    if event.kind != kinds.INFERENCE:
        raise BadEvent("kind", f"{event.kind} is not a job request")
    plan, partials = _parse_content(event.content)
    if plan.customer != event.pubkey:
        raise BadEvent("content.plan.customer", "not the author of the request")
    address = event.tag("a") or ""
    if not _ADDRESS.fullmatch(address):
        raise BadTag("a", "not the address of a manifest")
    for name, cited in (("x", plan.manifest), ("snapshot", plan.snapshot), ("committee", plan.committee)):
        if event.tag(name) != cited:
            raise BadTag(name, "not what the plan cites")
    certificate = next((t[1] for t in event.tags if len(t) > 3 and t[0] == "e" and t[3] == "certificate"), "")
    if not re.fullmatch(r"[0-9a-f]{64}", certificate):
        raise BadTag("e", "no certificate is cited")
    bid_msat = tags.number("bid", event.tag("bid") or "", plan.terms.max_total_msat)
    if bid_msat != plan.terms.max_total_msat:
        raise BadTag("bid", "not the plan's max_total_msat")
    if set(event.values("p")) != set(plan.providers()):
        raise BadTag("p", "not the plan's providers")
    ticket = event.tag("ticket") or ""
    if not re.fullmatch(r"[0-9a-f]{64}", ticket):
        raise BadTag("ticket", "not the seal of the job's tickets")
    return Request(
        id=event.id,
        customer=event.pubkey,
        created_at=event.created_at,
        kind=event.kind,
        plan=plan,
        manifest_address=address,
        certificate_event=certificate,
        partials=tuple(parse_unverified(partial) for partial in partials),
        bid_msat=bid_msat,
        relays=tags.relays(event),
        ticket=ticket,
    )


class Ticket(Schema):
    """Opens one job at one provider: the parameters that stay between customer and providers."""

    TAG: ClassVar[str] = "nodewire/ticket/1"
    MAX_BYTES: ClassVar[int] = 16_384
    ERROR: ClassVar[type[BadInput]] = BadInput

    v: Literal[1] = 1
    request: Hex32
    params: dict[str, Any] = Field(default_factory=dict, max_length=32)
    salt: Hex32
    """Keeps the seal from confirming a guess."""
    inputs: tuple[tuple[Name, Count, Hex32], ...] = Field(max_length=256)
    """Edge, seq and content hash (`content_of`) of every frame that the customer sends."""

    def seal(self) -> str:
        """What the request says of its tickets, before it has an id: all but the id."""
        said = self.document()
        del said["request"]
        # The one document that may hold floats has no canonical form: its JSON, keys sorted, is hashed.
        return canonical.tagged_hash(self.TAG, orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).hex()


def content_of(frame: Frame[Array]) -> str:
    """The hash of a frame's tensors, by which a ticket fixes what the customer sends (64 hex digits)."""
    arrays = [[a.dtype, list(a.shape), hashlib.sha256(a.data).digest()] for a in frame.tensors]
    return canonical.digest("nodewire/input/1", [frame.edge, frame.seq, arrays])
