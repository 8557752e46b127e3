"""Audits of training: a customer asks for snapshots (8844), their provider shows them (6844). nips/33."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from nodewire.errors import BadEvent, BadInput, BadTag
from nodewire.nostr import event as _event
from nodewire.protocol import kinds
from nodewire.protocol.encoding import tags
from nodewire.protocol.encoding.schema import Hex32, Schema
from nodewire.protocol.model.families import HEADER_BYTES
from nodewire.protocol.model.manifest import BlobRef
from nodewire.training.protocol.result import MAX_STATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.training.protocol.recipe import Recipe

MAX_SNAPSHOTS = 128


def most_bytes(recipe: Recipe) -> int:
    """Of a snapshot, or what is carried: a file of at most three numbers for each of theta's."""
    return 3 * (recipe.state_bytes() + HEADER_BYTES * (len(recipe.shapes()) + 1))


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """A customer wants to see these snapshots (by segment) of what a provider has delivered for `request`."""

    request: str
    customer: str
    provider: str
    snapshots: tuple[int, ...]
    close: str
    """The id of the close that they are drawn with."""


class SnapshotCiphertext(Schema):
    """One snapshot's ciphertext."""

    segment: int = Field(ge=0, le=MAX_STATES)
    """Of the snapshot at its end; the number after the last is what was carried into the round."""
    blob: BlobRef
    key: Hex32
    sha256: Hex32
    """Of the plaintext."""


class AuditAnswer(Schema):
    """What the answer tells the customer alone."""

    NAME: ClassVar[str] = "showing"
    MAX_BYTES: ClassVar[int] = 40_960
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    shown: tuple[SnapshotCiphertext, ...] = Field(min_length=1, max_length=MAX_SNAPSHOTS)


def ask(
    keys: Keys, kind: int, request: str, provider: str, close: str, snapshots: Sequence[int], *, created_at: int
) -> Event:
    """The event of a customer that audits a round of `kind`, as its `close` draws."""
    said = [["e", request], ["p", provider], ["k", str(kind)], ["close", close], ["snapshots", *map(str, snapshots)]]
    return _event.sign(keys, kinds.VERIFICATION, created_at=created_at, tags=said)


def parse(event: Event) -> AuditRequest:
    """What a verified event asks for.

    Raises:
        BadEvent, BadTag: with the field at fault; also if it is of another job than training.

    """
    tags.check_kind(event, kinds.VERIFICATION)
    if tags.number("k", tags.text(event, "k")) not in kinds.ROUNDS:
        raise BadTag("k", "no round of training")
    wanted = next((tag[1:] for tag in event.tags if tag[0] == "snapshots"), ())
    if not 0 < len(wanted) <= MAX_SNAPSHOTS:
        raise BadTag("snapshots", f"{len(wanted)}, from 1 to {MAX_SNAPSHOTS}")
    snapshots = tuple(tags.number("snapshots", one, most=MAX_STATES) for one in wanted)
    if list(snapshots) != sorted(set(snapshots)):
        raise BadTag("snapshots", "not ascending, each once")
    close = tags.hex32(event, "close")
    return AuditRequest(tags.hex32(event, "e"), event.pubkey, tags.hex32(event, "p"), snapshots, close)


def show(keys: Keys, kind: int, request: str, customer: str, ciphertext: str, *, created_at: int) -> Event:
    """The answer; `ciphertext` is NIP-44 of a Showing."""
    said = [["e", request], ["p", customer], ["k", str(kind)], ["encrypted"]]
    result = kinds.result_of(kinds.VERIFICATION)
    return _event.sign(keys, result, created_at=created_at, content=ciphertext, tags=said)
