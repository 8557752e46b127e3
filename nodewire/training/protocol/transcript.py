"""A training's transcript: all that was signed in it, what was counted, what came of it. nips/36.

The customer signs it. `opened` is what a third party needs to compute it again; it is no part of what is signed, for
every key in it opens a ciphertext that signed events cite, and everything else is under a commitment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from nodewire.errors import BadSignature
from nodewire.nostr import keys as _keys
from nodewire.protocol.encoding import canonical
from nodewire.protocol.encoding.schema import Count, Hex32, Hex64, Label, Msat, Schema
from nodewire.training.protocol.recipe import MAX_SHARDS, MAX_STEPS
from nodewire.training.protocol.round import MAX_ROUNDS

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys

MAX_TRANSCRIPT_BYTES = 2**28

MAX_UNDONE = 2**16

EventText = str
"""A signed event as JSON."""


class WeighedResult(Schema):
    """A result in an outer step; `round` is the one it was trained in."""

    request: Hex32
    provider: Hex32
    index: int = Field(ge=0, lt=MAX_SHARDS)
    round: int = Field(ge=0, lt=MAX_ROUNDS)
    steps: int = Field(ge=1, le=MAX_STEPS)
    weight: Count


class OuterStepRecord(Schema):
    """An outer step: hashes of theta before and after it (as safetensors), and the held-out loss in millionths."""

    round: int = Field(ge=0, lt=MAX_ROUNDS)
    before: Hex32
    after: Hex32
    loss: Count
    results: tuple[WeighedResult, ...] = Field(min_length=1, max_length=2 * MAX_SHARDS)


class BlamedResult(Schema):
    """A result that failed its audit after it had counted, or waited for it when another of its provider's failed."""

    request: Hex32
    provider: Hex32


class UndoneSteps(Schema):
    """Outer steps that were made one after the other and are no part of the weights, and the results that it is for."""

    failed: tuple[BlamedResult, ...] = Field(min_length=1, max_length=MAX_UNDONE)
    rounds: tuple[OuterStepRecord, ...] = Field(min_length=1, max_length=MAX_UNDONE)


class Payment(Schema):
    """`part` 0 is a deposit, 1 a balance."""

    request: Hex32
    provider: Hex32
    part: int = Field(ge=0, le=1)
    amount_msat: Msat


class BoughtSteps(Schema):
    """Outer steps that others were asked for (8842), what they have delivered (6842), and what they were paid."""

    requests: tuple[EventText, ...] = Field(min_length=1)
    results: tuple[EventText, ...] = ()
    payments: tuple[Payment, ...] = ()


class OpenedShard(Schema):
    """What a ticket held beside recipe and salt."""

    request: Hex32
    provider: Hex32
    theta_key: Hex32
    theta_sha256: Hex32
    shard_key: Hex32
    shard_sha256: Hex32
    start_key: Hex32 | None = None
    carried: Hex32 | None = None


class RevealedDocuments(Schema):
    results: dict[Hex32, dict[str, Any]]
    """By the result event's id, the `delivered` document that is its content."""
    answers: dict[Hex32, dict[str, Any]]
    """By the answer's id, the `showing` document."""
    shards: tuple[OpenedShard, ...]


class Transcript(Schema):
    TAG: ClassVar[str] = "nodewire/transcript/1"
    MAX_BYTES: ClassVar[int] = MAX_TRANSCRIPT_BYTES

    v: Literal[1] = 1
    customer: Hex32
    job: Hex32
    salt: Hex32
    recipe: dict[str, Any]
    shards: int = Field(ge=1, le=MAX_SHARDS)
    network: Label = ""
    requests: tuple[EventText, ...]
    results: tuple[EventText, ...]
    closes: tuple[EventText, ...] = ()
    asks: tuple[EventText, ...] = ()
    answers: tuple[EventText, ...] = ()
    receipts: tuple[EventText, ...] = ()
    """Of zaps."""
    payments: tuple[Payment, ...] = ()
    rounds: tuple[OuterStepRecord, ...] = Field(min_length=1)
    undone: tuple[UndoneSteps, ...] = ()
    """In the order in which it was gone back."""
    weights: Hex32
    """SHA-256 of the final weights as safetensors."""
    bought: BoughtSteps | None = None
    opened: RevealedDocuments | None = None
    sig: Hex64 = "0" * 128

    def document(self) -> dict[str, Any]:
        """Without `bought` if nothing was: as transcripts were written before there was such a thing."""
        said = super().document()
        if self.bought is None:
            del said["bought"]
        return said

    def signed(self, keys: Keys) -> Self:
        """As it goes out: signed over all but `opened`."""
        return self.model_copy(update={"sig": keys.sign(self._said()).hex()})

    def closed(self) -> Self:
        """Without what opens it; the signature stands."""
        return self.model_copy(update={"opened": None})

    def check_signature(self) -> None:
        """Raises BadSignature: it is not what its customer has signed."""
        if not _keys.verify(self.customer, self._said(), bytes.fromhex(self.sig)):
            raise BadSignature("sig", "not its customer's")

    def _said(self) -> bytes:
        said = self.document()
        del said["opened"], said["sig"]
        if not self.undone:  # as they were signed before there were any
            del said["undone"]
        return bytes.fromhex(canonical.digest(self.TAG, said))
