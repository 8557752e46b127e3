"""Results (kind 6843): one by each provider of a job, when its part is done. nips/15-feedback.md.

The tags carry the roots it committed to, chunk by chunk; the content is NIP-44 ciphertext for the customer (the
driver's holds the whole output, so that a customer who lost its link still gets what it paid for).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, Literal

import orjson
from pydantic import ValidationError

from nodewire.errors import BadEvent, BadInput, BadTag
from nodewire.nostr import event as _event
from nodewire.protocol import kinds
from nodewire.protocol.committee.commitment import ChunkRoot
from nodewire.protocol.encoding import tags
from nodewire.protocol.encoding.schema import Count, Schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys

ROOTS_BYTES = 57_344
"""As JSON, of all roots: what else an event may have, and a result says, takes less than the rest of its 65,536."""


class ResultDetails(Schema):
    """What a result tells the customer alone: frames put out, and compute per call (median and total)."""

    NAME: ClassVar[str] = "said"
    MAX_BYTES: ClassVar[int] = 1_024
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    frames: Count
    compute_us: tuple[Count, Count]


@dataclass(frozen=True, slots=True)
class Result:
    id: str
    provider: str
    request: str
    customer: str
    roots: tuple[ChunkRoot, ...]
    ciphertext: str


def build(
    keys: Keys, request: str, customer: str, roots: Sequence[ChunkRoot], ciphertext: str, *, created_at: int
) -> Event:
    said = [["e", request], ["p", customer], ["encrypted"]]
    said += _last([["root", r.task, str(r.chunk), str(r.attempt), r.root] for r in roots])
    return _event.sign(keys, kinds.result_of(kinds.INFERENCE), created_at=created_at, content=ciphertext, tags=said)


def parse(event: Event) -> Result:
    """The result in `event`, whose signature has been checked.

    Raises:
        BadEvent, BadTag: with the field at fault.

    """
    tags.check_kind(event, kinds.result_of(kinds.INFERENCE))
    request, customer = tags.hex32(event, "e"), tags.hex32(event, "p")
    roots = tuple(_root(request, row) for row in event.tags if row[0] == "root")
    return Result(event.id, event.pubkey, request, customer, roots, event.content)


def _last(rows: list[list[str]]) -> list[list[str]]:
    """The last of these rows, as many as an event has room for."""
    sizes = accumulate(len(orjson.dumps(row)) + 1 for row in reversed(rows))
    return rows[len(rows) - sum(size <= ROOTS_BYTES for size in sizes) :]


def _root(request: str, row: tuple[str, ...]) -> ChunkRoot:
    if len(row) != 5:
        raise BadTag("root", "not [root, task, chunk, attempt, hash]")
    chunk, attempt = (tags.number("root", value) for value in row[2:4])
    try:
        return ChunkRoot(request=request, task=row[1], chunk=chunk, attempt=attempt, root=row[4])
    except ValidationError as error:
        raise BadTag("root", "not a task's name and a hash") from error
