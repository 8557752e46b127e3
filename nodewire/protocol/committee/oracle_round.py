"""What one oracle says in a round (kind 8850): its inventory, the leader's proposal, its vote, events others lack.

All carry `t` (which of them it is), `c` (committee), `n` (topic: `epoch/<number>`), `x` (the digest of what it says),
`expiration` (`Committee.kept_until_s`). An oracle says at most one `x` for one (`t`, `n`); two are evidence against it
(kind 8853).

inventory  content = Inventory as JSON up to 4 KiB; a longer one is a blob (canonical msgpack) whose SHA-256 is tag
           `blob`, and the content is empty. Lists the beats and commitments that the oracle holds and found valid, and
           what certified verdicts say that is to be counted now (`reputation`). Beats of nodes of which a listed holder
           has stated a bond of a unit or more stand apart, in `bonded`.
proposal   content = Body (kind 8852) as JSON; `x` = its digest; `e` = each cited inventory.
vote       content empty; `x` = digest of the body voted for.
supply     no `x`; content = JSON array of at most 64 signed events as NIP-01 objects: beats, ads, bond statements that
           the oracle listed, that f+1 inventories list, and that some other inventory lacks. Beats are replaceable, so
           relays may have dropped what the round still needs. At most 8 of an oracle's count in a round.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import orjson
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from nodewire.errors import BadEvent, BadHash, BadInput, BadTag
from nodewire.nostr.event import Event, sign
from nodewire.nostr.event import parse as parse_event
from nodewire.protocol import kinds
from nodewire.protocol.committee.epoch_body import Body
from nodewire.protocol.committee.reputation import MAX_JUDGED, ReputationVerdict
from nodewire.protocol.encoding import tags
from nodewire.protocol.encoding.schema import Hex32, Schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.nostr.keys import Keys

KIND = kinds.INVENTORY
MAX_INLINE_BYTES = 4_096
"""Of an inventory's or a commitment's content; relays keep events, and a larger one is a blob."""
MAX_SUPPLY_BYTES = 49_152
MAX_BEATS = 8_192
MAX_COMMITMENTS = 4_096
MAX_SUPPLIED = 64
MAX_SUPPLIES = 8

Saying = Literal["inventory", "proposal", "vote", "supply"]


class Inventory(Schema):
    """Sorted ids of the valid beats (the newest two of a node) and of the epoch's commitments that an oracle holds."""

    TAG: ClassVar[str] = "nodewire/inventory/1"
    MAX_BYTES: ClassVar[int] = 1_048_576
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    committee: Hex32
    epoch: int = Field(ge=0, le=tags.MAX_EPOCH)
    beats: tuple[Hex32, ...] = Field(max_length=MAX_BEATS)
    commitments: tuple[Hex32, ...] = Field(max_length=MAX_COMMITMENTS)
    judged: tuple[ReputationVerdict, ...] = Field(default=(), max_length=MAX_JUDGED)
    bonded: tuple[Hex32, ...] = Field(default=(), max_length=MAX_BEATS)
    """The beats of nodes with a bond, which are not in `beats`; left out where there is none."""

    @property
    def all_beats(self) -> tuple[str, ...]:
        return self.beats + self.bonded

    @model_serializer(mode="wrap")
    def _without_its_default(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said: dict[str, Any] = serialize(self)
        if not self.bonded:
            del said["bonded"]
        return said

    @model_validator(mode="after")
    def _is_sorted(self) -> Self:
        for name in ("beats", "commitments", "bonded"):
            ids = getattr(self, name)
            if any(a >= b for a, b in pairwise(ids)):
                raise ValueError(f"{name}: not sorted, or one stands twice")
        if len(self.all_beats) > MAX_BEATS or not set(self.bonded).isdisjoint(self.beats):
            raise ValueError(f"bonded: more than {MAX_BEATS} with `beats`, or one stands in both")
        if any(a.order >= b.order for a, b in pairwise(self.judged)):
            raise ValueError("judged: not sorted, or one stands twice")
        return self


@dataclass(frozen=True, slots=True)
class InventoryEvent:
    """A parsed inventory event; `inventory` is None as long as its blob is not there (`attach`)."""

    id: str
    oracle: str
    committee: str
    epoch: int
    x: str
    blob: str | None
    inventory: Inventory | None

    def attach(self, data: bytes) -> InventoryEvent:
        """With its blob. Raises BadHash, or as `Inventory.unpack`."""
        if hashlib.sha256(data).hexdigest() != self.blob:
            raise BadHash("blob", "not the inventory's")
        inventory = Inventory.unpack(data)
        _check(inventory, self.committee, self.epoch, self.x)
        return InventoryEvent(self.id, self.oracle, self.committee, self.epoch, self.x, self.blob, inventory)


@dataclass(frozen=True, slots=True)
class Proposal:
    id: str
    oracle: str
    body: Body
    x: str


@dataclass(frozen=True, slots=True)
class Vote:
    id: str
    oracle: str
    committee: str
    topic: str
    x: str


@dataclass(frozen=True, slots=True)
class Supply:
    """`events` are verified."""

    id: str
    oracle: str
    committee: str
    epoch: int
    events: tuple[Event, ...]


def build_inventory(
    keys: Keys, inventory: Inventory, *, created_at: int, expires_at_s: int | None = None
) -> tuple[Event, bytes | None]:
    """The event, and the blob that must be stored before it is published (None if it fits inline)."""
    tags_ = _tags("inventory", inventory.committee, tags.epoch_topic(inventory.epoch), inventory.digest(), expires_at_s)
    content = inventory.to_json()
    if len(content) <= MAX_INLINE_BYTES:
        return sign(keys, KIND, created_at=created_at, content=content, tags=tags_), None
    blob = inventory.pack()
    tags_.append(("blob", hashlib.sha256(blob).hexdigest()))
    return sign(keys, KIND, created_at=created_at, tags=tags_), blob


def build_proposal(keys: Keys, body: Body, *, created_at: int, expires_at_s: int | None = None) -> Event:
    tags_ = _tags("proposal", body.committee, tags.epoch_topic(body.epoch), body.digest(), expires_at_s)
    tags_ += [("e", id_) for id_ in body.inventories]
    return sign(keys, KIND, created_at=created_at, content=body.to_json(), tags=tags_)


def build_vote(
    keys: Keys, committee: str, topic: str, digest: str, *, created_at: int, expires_at_s: int | None = None
) -> Event:
    return sign(keys, KIND, created_at=created_at, tags=_tags("vote", committee, topic, digest, expires_at_s))


def build_supply(
    keys: Keys,
    committee: str,
    epoch: int,
    events: Sequence[Event],
    *,
    created_at: int,
    expires_at_s: int | None = None,
) -> list[Event]:
    """As many supply events as these events need, each under 48 KiB of content; the first that count."""
    batches: list[list[Event]] = [[]]
    room = MAX_SUPPLY_BYTES
    for event in events:
        size = len(event.to_json()) + 1
        if size > room or len(batches[-1]) == MAX_SUPPLIED:
            batches.append([])
            room = MAX_SUPPLY_BYTES
        batches[-1].append(event)
        room -= size
    tags_ = [("t", "supply"), ("c", committee), ("n", tags.epoch_topic(epoch)), *tags.expiration(expires_at_s)]
    contents = ["[" + ",".join(event.to_json() for event in batch) + "]" for batch in batches[:MAX_SUPPLIES] if batch]
    return [sign(keys, KIND, created_at=created_at, content=content, tags=tags_) for content in contents]


def parse(event: Event) -> InventoryEvent | Proposal | Vote | Supply:
    """What a verified event says.

    Raises:
        BadEvent, BadTag, BadQuorum, BadVersion, TooLarge: it is malformed.
        BadHash: `x` is not the digest of its content.

    """
    tags.check_kind(event, KIND)
    saying, committee = tags.text(event, "t"), tags.hex32(event, "c")
    if saying == "supply":
        return Supply(event.id, event.pubkey, committee, tags.epoch_of(event), _supplied(event.content))
    x = tags.hex32(event, "x")
    if saying == "vote":
        topic = tags.text(event, "n")
        if event.content or not 0 < len(topic) <= 128:
            raise BadEvent("content" if event.content else "n", "not as a vote has it")
        return Vote(event.id, event.pubkey, committee, topic, x)
    epoch = tags.epoch_of(event)
    if saying == "proposal":
        body = Body.parse(event.content)
        if body.committee != committee or body.epoch != epoch:
            raise BadTag("n", "the tags name another committee or epoch than the body")
        if body.digest() != x:
            raise BadHash("x", "not the body's digest")
        return Proposal(event.id, event.pubkey, body, x)
    if saying == "inventory":
        if not event.content:
            return InventoryEvent(event.id, event.pubkey, committee, epoch, x, tags.hex32(event, "blob"), None)
        inventory = Inventory.parse(event.content)
        _check(inventory, committee, epoch, x)
        return InventoryEvent(event.id, event.pubkey, committee, epoch, x, None, inventory)
    raise BadTag("t", f"{saying[:20]!r} is none of inventory, proposal, vote, supply")


def _supplied(content: str) -> tuple[Event, ...]:
    try:
        values = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise BadEvent("content", "not JSON") from error
    if not isinstance(values, list) or len(values) > MAX_SUPPLIED:
        raise BadEvent("content", f"not an array of at most {MAX_SUPPLIED}")
    return tuple(parse_event(value) for value in values)


def _check(inventory: Inventory, committee: str, epoch: int, x: str) -> None:
    if inventory.committee != committee or inventory.epoch != epoch:
        raise BadTag("n", "the tags name another committee or epoch than the inventory")
    if inventory.digest() != x:
        raise BadHash("x", "not the inventory's digest")


def _tags(saying: Saying, committee: str, topic: str, x: str, expires_at_s: int | None) -> list[tuple[str, str]]:
    return [("t", saying), ("c", committee), ("n", topic), ("x", x), *tags.expiration(expires_at_s)]
