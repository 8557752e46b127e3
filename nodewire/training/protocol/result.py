"""What a provider delivers for its shard of a round (kinds 6840, 6841). nips/35-training-results.md.

The tags carry a commitment to the trained states and to the result, and cite the result's ciphertext. The content is
NIP-44 ciphertext for the customer: the key, what the result must hash to, and what opens the commitment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from nodewire.errors import BadEvent, BadInput, BadTag
from nodewire.nostr import event as _event
from nodewire.protocol import kinds
from nodewire.protocol.encoding import canonical, merkle, tags
from nodewire.protocol.encoding.schema import Count, Hex32, Schema
from nodewire.protocol.model import inline_blob
from nodewire.protocol.model.manifest import BlobRef

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys

MAX_STATES = 384
MAX_LOSSES = 256


class DeliveryDetails(Schema):
    """What only the customer reads. `sha256` and `bytes` are of the plaintext, the packed update."""

    NAME: ClassVar[str] = "delivered"
    MAX_BYTES: ClassVar[int] = 40_960
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    key: Hex32
    """Of the ciphertext that the event cites."""
    sha256: Hex32
    bytes: Count
    samples: Count
    """That were trained on, repetitions counted."""
    losses: tuple[Count, ...] = Field(max_length=MAX_LOSSES)
    """Of training, in millionths, as they fell; the provider's word and no more."""
    states: tuple[Hex32, ...] = Field(max_length=MAX_STATES)
    """Digests of the snapshots after every segment."""
    carried: Hex32 | None = None
    """SHA-256 of what its provider carries on from this round, or NOTHING; None in recipes that carry nothing."""

    def commitment(self, provider: str, request: str, round_: int, index: int) -> str:
        """The event's `x`: the Merkle root over the snapshots' digests and the packed update's hash, for whom and what.

        Its author is part of it: nobody else can open it as its own.
        """
        leaves = (*self.states, self.sha256, *([] if self.carried is None else [self.carried]))
        tree = merkle.root([merkle.leaf(bytes.fromhex(leaf)) for leaf in leaves])
        return canonical.digest("nodewire/round/1", [provider, request, round_, index, tree])


class Progress(Schema):
    """What a provider tells the customer alone while it trains: steps made, the latest loss in millionths."""

    MAX_BYTES: ClassVar[int] = 1_024
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    step: Count
    loss: Count


@dataclass(frozen=True, slots=True)
class Delivery:
    """A parsed delivery; `amount_msat` is what its provider asks for it besides the deposit."""

    id: str
    provider: str
    request: str
    customer: str
    created_at: int
    commitment: str
    blob: BlobRef
    amount_msat: int
    ciphertext: str
    result: bytes | None = None
    """The result's ciphertext, where it stands in the event."""


@dataclass(frozen=True, slots=True)
class Goods:
    """What is delivered for a request, and what is still to be paid for it."""

    commitment: str
    blob: BlobRef
    amount_msat: int
    ciphertext: str
    """NIP-44 of DeliveryDetails."""
    result: bytes | None = None
    """The result's ciphertext, if it is to stand in the event (`fits`)."""


def build(keys: Keys, kind: int, request: str, customer: str, goods: Goods, *, created_at: int) -> Event:
    """The result of a request of `kind`."""
    said = [
        ["e", request],
        ["p", customer],
        ["x", goods.commitment],
        ["i", goods.blob.sha256, "blob", str(goods.blob.bytes)],
        ["amount", str(goods.amount_msat)],
        ["encrypted"],
    ]
    if goods.result is not None:
        said += inline_blob.tag(goods.result, len(goods.ciphertext) + 1_024)
    return _event.sign(keys, kinds.result_of(kind), created_at=created_at, content=goods.ciphertext, tags=said)


def parse(event: Event) -> Delivery:
    """The delivery in `event`, whose signature has been checked.

    Raises:
        BadEvent, BadTag: with the field at fault.

    """
    if event.kind not in (kinds.result_of(kinds.FEDAVG), kinds.result_of(kinds.DILOCO)):
        raise BadEvent("kind", f"{event.kind} is no result of a round of training")
    cited = next((tag for tag in event.tags if tag[0] == "i"), ())
    if len(cited) != 4 or cited[2] != "blob":
        raise BadTag("i", "not [i, hash, blob, bytes]")
    blob = BlobRef(sha256=tags.is_hex32("i", cited[1]), bytes=tags.number("i", cited[3]))
    return Delivery(
        id=event.id,
        provider=event.pubkey,
        request=tags.hex32(event, "e"),
        customer=tags.hex32(event, "p"),
        created_at=event.created_at,
        commitment=tags.hex32(event, "x"),
        blob=blob,
        amount_msat=tags.number("amount", tags.text(event, "amount"), most=2**63 - 1),
        ciphertext=event.content,
        result=inline_blob.find_bytes(event, blob),
    )
