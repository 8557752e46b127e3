"""A commitment (kind 8854): one provider's (or verifier's) chunk roots of one epoch, under one signature.

Event: `c`, `n` = epoch/<number>, `x` = Merkle root over the chunks, `e` = each job request (at most 256); content = the
document as JSON up to 4 KiB, else empty, with tag `blob` = SHA-256 of the document's canonical msgpack.

A chunk's leaf is the canonical msgpack of [request, task, chunk, attempt, root]; `root` is the salted Merkle root of
what the chunk produced. The first certified root of a (provider, request, task, chunk, attempt) counts, by epoch, then
by event id; a second never does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from nodewire.errors import BadEvent, BadHash, BadInput, BadTag
from nodewire.nostr.event import Event, sign
from nodewire.protocol import kinds
from nodewire.protocol.committee.oracle_round import MAX_INLINE_BYTES
from nodewire.protocol.encoding import canonical, merkle, tags
from nodewire.protocol.encoding.schema import Count, Hex32, Name, Schema

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys

KIND = kinds.COMMITMENT
MAX_CHUNKS = 16_384
_MAX_REQUEST_TAGS = 256


class ChunkRoot(Schema):
    """The salted Merkle root of what `task` produced in a job's `chunk`; `attempt` is 0."""

    request: Hex32
    task: Name
    chunk: Count
    attempt: Count
    root: Hex32

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.request, self.task, self.chunk, self.attempt

    def leaf(self) -> bytes:
        return merkle.leaf(canonical.encode([*self.key, self.root]))


class Commitment(Schema):
    MAX_BYTES: ClassVar[int] = 8_388_608
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    committee: Hex32
    epoch: int = Field(ge=0, le=tags.MAX_EPOCH)
    chunks: tuple[ChunkRoot, ...] = Field(min_length=1, max_length=MAX_CHUNKS)
    """Sorted by (request, task, chunk, attempt), each once, and the attempt always 0."""

    @model_validator(mode="after")
    def _is_sorted(self) -> Self:
        if any(a.key >= b.key for a, b in pairwise(self.chunks)):
            raise ValueError("chunks: not sorted, or one stands twice")
        if any(chunk.attempt for chunk in self.chunks):  # of a chunk one root is drawn: another would hide behind it
            raise ValueError("chunks: an attempt that is not the first")
        return self

    def root(self) -> str:
        return merkle.root([chunk.leaf() for chunk in self.chunks]).hex()

    def proof(self, index: int) -> tuple[bytes, ...]:
        """The proof that chunk `index` is under `root()`, for `merkle.verify`."""
        return merkle.proof([chunk.leaf() for chunk in self.chunks], index)


@dataclass(frozen=True, slots=True)
class CommitmentEvent:
    """A parsed commitment event; `commitment` is None as long as its blob is not there (`attach`)."""

    id: str
    provider: str
    committee: str
    epoch: int
    root: str
    blob: str | None
    commitment: Commitment | None

    @property
    def chunks(self) -> tuple[ChunkRoot, ...]:
        """None as long as its blob is not there."""
        return self.commitment.chunks if self.commitment is not None else ()

    def is_about(self, request: str) -> bool:
        """Whether it commits to something of this job."""
        return any(root.request == request for root in self.chunks)

    def attach(self, data: bytes) -> CommitmentEvent:
        """With its blob. Raises BadHash, or as `Commitment.unpack`."""
        if hashlib.sha256(data).hexdigest() != self.blob:
            raise BadHash("blob", "not the commitment's")
        commitment = Commitment.unpack(data)
        _check(commitment, self.committee, self.epoch, self.root)
        return CommitmentEvent(self.id, self.provider, self.committee, self.epoch, self.root, self.blob, commitment)


def build(
    keys: Keys, commitment: Commitment, *, created_at: int, expires_at_s: int | None = None
) -> tuple[Event, bytes | None]:
    """The event, and the blob that must be stored before it is published (None if it fits inline)."""
    requests = list(dict.fromkeys(chunk.request for chunk in commitment.chunks))[:_MAX_REQUEST_TAGS]
    tags_ = [("c", commitment.committee), ("n", tags.epoch_topic(commitment.epoch)), ("x", commitment.root())]
    tags_ += [*(("e", request) for request in requests), *tags.expiration(expires_at_s)]
    content = commitment.to_json()
    if len(content) <= MAX_INLINE_BYTES:
        return sign(keys, KIND, created_at=created_at, content=content, tags=tags_), None
    blob = commitment.pack()
    tags_.append(("blob", hashlib.sha256(blob).hexdigest()))
    return sign(keys, KIND, created_at=created_at, tags=tags_), blob


def parse(event: Event) -> CommitmentEvent:
    """The commitment in a verified event.

    Raises:
        BadEvent, BadTag, BadVersion, TooLarge: it is malformed.
        BadHash: `x` is not the root over its chunks.

    """
    tags.check_kind(event, KIND)
    committee, epoch, root = tags.hex32(event, "c"), tags.epoch_of(event), tags.hex32(event, "x")
    if not event.content:
        return CommitmentEvent(event.id, event.pubkey, committee, epoch, root, tags.hex32(event, "blob"), None)
    commitment = Commitment.parse(event.content)
    _check(commitment, committee, epoch, root)
    return CommitmentEvent(event.id, event.pubkey, committee, epoch, root, None, commitment)


def certified_root(ids: list[str]) -> str:
    """The Merkle root that a body certifies for the commitments with these event ids."""
    return merkle.root([merkle.leaf(bytes.fromhex(id_)) for id_ in sorted(ids)]).hex()


def _check(commitment: Commitment, committee: str, epoch: int, root: str) -> None:
    if commitment.committee != committee or commitment.epoch != epoch:
        raise BadTag("n", "the tags name another committee or epoch than the commitment")
    if commitment.root() != root:
        raise BadHash("x", "not the root over the commitment's chunks")
