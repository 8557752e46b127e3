"""Feedback on a job (kind 7000): where a provider stands, and which chunk's payment is due. nips/15-feedback.md.

`payment-required` names a chunk, its signed root and its price: the provider's claim that the chunk is done and what
it computed, which the customer pays by one zap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, cast, get_args

from pydantic import StringConstraints

from nodewire.errors import BadEvent, BadInput, BadTag, NodewireError, TooLarge, Unsupported
from nodewire.nostr import event as _event
from nodewire.protocol import kinds
from nodewire.protocol.encoding import tags
from nodewire.protocol.encoding.schema import Schema
from nodewire.protocol.job.chunk_close import Close

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys

MAX_EDGE_CHARS = 64
THE_CUSTOMERS = frozenset({BadInput.code, TooLarge.code, Unsupported.code})
"""Codes of errors that are about what the customer itself has sent."""
Status = Literal["payment-required", "processing", "partial", "success", "error", "busy"]


class ErrorDetail(Schema):
    """What an error is about that is the customer's own: the field at fault, for it alone (`ciphertext`)."""

    MAX_BYTES: ClassVar[int] = 4_096
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    field: Annotated[str, StringConstraints(max_length=64)]
    reason: Annotated[str, StringConstraints(max_length=200)] = ""

    @classmethod
    def from_error(cls, error: NodewireError) -> ErrorDetail:
        return cls(field=error.field[:64], reason=error.reason[:200])


@dataclass(frozen=True, slots=True)
class Due:
    """One chunk's payment: `units` chunks' worth (a prefill may be several) of `amount_msat` in all."""

    chunk: int
    attempt: int
    units: int
    amount_msat: int
    root: str
    cached: int = 0
    """Of these units, the first that all of the provider's stages had found and not computed."""
    close: Close | None = None
    """The driver's word that the chunk is over, where there is one: it may not have come to the customer. Whoever reads
    it checks its signature."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """`id`, `provider` and `created_at` are the event's; `due` stands in `payment-required` only.

    In `error` only: `edge`, what came on which cannot be computed, and `by`, the neighbour whose word it is, if not the
    provider's own.

    `kind` is the request's; `ciphertext`, where there is one, is NIP-44 for the customer: `ErrorDetail`, or of training
    `training.protocol.result`.
    """

    id: str
    provider: str
    request: str
    customer: str
    status: Status
    text: str = ""
    due: Due | None = None
    created_at: int = 0
    kind: int = kinds.INFERENCE
    ciphertext: str = ""
    edge: str = ""
    by: str = ""
    work: int = 0
    """Bits that a request is to carry, with the error `work-required`."""


@dataclass(frozen=True, slots=True)
class Remarks:
    """What is said beside a status, as `Feedback` has it. `text` is public: nothing of the job's content goes there."""

    text: str = ""
    ciphertext: str = ""
    edge: str = ""
    by: str = ""
    work: int = 0


NONE = Remarks()


def build(
    keys: Keys,
    request: str,
    customer: str,
    status: Status,
    *,
    created_at: int,
    due: Due | None = None,
    kind: int = kinds.INFERENCE,
    remarks: Remarks = NONE,
) -> Event:
    """The feedback event on a request of `kind`."""
    said = [["e", request], ["p", customer], ["k", str(kind)], ["status", status, remarks.text[:200]]]
    if due is not None:
        said.append(["amount", str(due.amount_msat)])
        said.append(["chunk", str(due.chunk), str(due.attempt), str(due.units), due.root])
        if due.cached:
            said.append(["cached", str(due.cached)])
        if (close := due.close) is not None:
            said.append(["close", close.sig, str(int(close.end)), str(close.positions or 0)])
    said += [[name, value] for name, value in (("edge", remarks.edge), ("by", remarks.by)) if value]
    if remarks.work:
        said.append(["work", str(remarks.work)])
    return _event.sign(keys, kinds.FEEDBACK, created_at=created_at, content=remarks.ciphertext, tags=said)


def parse(event: Event) -> Feedback:
    """The feedback in `event`, whose signature has been checked.

    Raises:
        BadEvent, BadTag: with the field at fault.

    """
    tags.check_kind(event, kinds.FEEDBACK)
    request, customer = tags.hex32(event, "e"), tags.hex32(event, "p")
    status_tag = next((t for t in event.tags if t[0] == "status"), ())
    if len(status_tag) < 2 or status_tag[1] not in get_args(Status):
        raise BadTag("status", f"not one of {', '.join(get_args(Status))}")
    status = cast("Status", status_tag[1])
    due = _due(event, request) if status == "payment-required" else None
    return Feedback(
        id=event.id,
        provider=event.pubkey,
        request=request,
        customer=customer,
        status=status,
        text=status_tag[2][:200] if len(status_tag) > 2 else "",
        due=due,
        created_at=event.created_at,
        kind=tags.number("k", event.tag("k") or str(kinds.INFERENCE), most=65_535),
        ciphertext=event.content,
        edge=(event.tag("edge") or "")[:MAX_EDGE_CHARS] if status == "error" else "",
        by=tags.is_hex32("by", event.tag("by") or "") if status == "error" and event.tag("by") else "",
        work=tags.number("work", event.tag("work") or "0", most=256) if status == "error" else 0,
    )


def _due(event: Event, request: str) -> Due:
    amount_msat = tags.number("amount", tags.text(event, "amount"))
    said = next((t for t in event.tags if t[0] == "chunk"), ())
    if len(said) != 5:
        raise BadTag("chunk", "not [chunk, number, attempt, units, root]")
    chunk, attempt, units = (tags.number("chunk", value) for value in said[1:4])
    cached = tags.number("cached", event.tag("cached") or "0")
    if cached > units or (cached and chunk):
        raise BadTag("cached", "more than the units, or of another chunk than the prompt's")
    close = _close(event, request, chunk, units)
    return Due(chunk, attempt, units, amount_msat, tags.is_hex32("chunk", said[4]), cached, close)


def _close(event: Event, request: str, chunk: int, units: int) -> Close | None:
    """The close that a claim rests on: what it says of the job, chunk and units, the claim says itself."""
    said = next((t for t in event.tags if t[0] == "close"), None)
    if said is None:
        return None
    if len(said) != 4 or said[2] not in ("0", "1"):
        raise BadTag("close", "not [close, signature, 0 or 1, positions]")
    document = {"v": 1, "request": request, "attempt": 0, "chunk": chunk, "units": units, "end": said[2] == "1"}
    positions = tags.number("close", said[3])
    try:
        return Close.from_document({**document, **({"positions": positions} if positions else {}), "sig": said[1]})
    except BadInput as error:
        raise BadTag("close", str(error)) from error
