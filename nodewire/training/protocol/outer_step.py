"""An outer step as a job of its own (8842 -> 6842), and the ticket that opens it. nips/32-training-outer-steps.md.

The request is public: which results of a round become the next weights, what each of them weighs, what the step is
paid. Recipe, keys and the plaintexts' hashes travel in a ticket. The result commits to pieces of what came out, so
that a customer which computes some of them again, drawn afterwards, knows what the rest is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import orjson
from pydantic import Field, model_validator

from nodewire.errors import BadEvent, BadInput, BadTag
from nodewire.nostr import event as _event
from nodewire.protocol import kinds
from nodewire.protocol.encoding import canonical, tags
from nodewire.protocol.encoding.schema import Count, Hex32, Msat, Schema
from nodewire.protocol.model.manifest import BlobRef
from nodewire.training.protocol.recipe import MAX_SAMPLES, MAX_SHARDS, Recipe
from nodewire.training.protocol.round import MAX_ROUNDS, OUTPUT, job_of, seal_of
from nodewire.training.protocol.trainer_ad import TOPIC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys

MAX_INPUTS = 96
"""Results of one step: their keys must fit into one ticket. A customer of more makes its steps itself."""
_HEAP_BYTES = 8 * 2**20
_BLOCK = 2**18
_MOMENTA = {"average": 0, "nesterov": 1, "fedadam": 2}


class Input(Schema):
    """One result that the step is made of."""

    result: Hex32
    """The id of the event (6840, 6841) that delivered it."""
    index: int = Field(ge=0, lt=MAX_SHARDS)
    weight: int = Field(ge=1, le=MAX_SAMPLES)
    update: BlobRef
    """The ciphertext of the packed update."""


class Optimization(Schema):
    """What is to be computed, by whom, for how much."""

    MAX_BYTES: ClassVar[int] = 40_960
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    job: Hex32
    round: int = Field(ge=0, lt=MAX_ROUNDS)
    seal: Hex32
    provider: Hex32
    theta: BlobRef
    momenta: BlobRef | None = None
    """None: zeros, as before the first round, or there are none."""
    inputs: tuple[Input, ...] = Field(min_length=1, max_length=MAX_INPUTS)
    gflop: Count
    price_msat: Msat
    deposit_msat: Msat
    ticket: Hex32
    """OuterTicket.seal() of the provider's ticket."""
    deadline_s: int = Field(ge=1, le=31_536_000)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        indices = [one.index for one in self.inputs]
        if indices != sorted(indices):  # of one shard a late result may stand before the round's
            raise ValueError("inputs: not in ascending order")
        if len({one.result for one in self.inputs}) != len(self.inputs):
            raise ValueError("inputs: a result stands twice")
        if self.deposit_msat > self.price_msat:
            raise ValueError("deposit_msat: above the price")
        return self

    @property
    def balance_msat(self) -> int:
        """What is paid when the step has been checked."""
        return self.price_msat - self.deposit_msat

    def find_assignment(self, provider: str) -> Optimization | None:
        """What `provider` has to do."""
        return self if self.provider == provider else None


@dataclass(frozen=True, slots=True)
class OuterRequest:
    """A parsed request. `id`, `customer` and `created_at` are the event's."""

    id: str
    customer: str
    created_at: int
    kind: int
    round: Optimization


class OuterTicket(Schema):
    """Opens one step at one provider. Keys are of one blob each; hashes are of plaintexts."""

    TAG: ClassVar[str] = "nodewire/outer-ticket/1"
    MAX_BYTES: ClassVar[int] = 24_576
    ERROR: ClassVar[type[BadInput]] = BadInput

    v: Literal[1] = 1
    request: Hex32
    salt: Hex32
    recipe: dict[str, Any]
    theta_key: Hex32
    theta_sha256: Hex32
    momenta_key: Hex32 | None = None
    momenta_sha256: Hex32 | None = None
    opens: tuple[tuple[Hex32, Hex32], ...] = Field(min_length=1, max_length=MAX_INPUTS)
    """Key and hash of every input's update, in the inputs' order."""

    def seal(self) -> str:
        """What the request says of the ticket, before it has an id: all but the id."""
        said = self.document()
        del said["request"]
        return canonical.digest(self.TAG, said)


class OuterDeliveryDetails(Schema):
    """What only the customer reads: keys, and hashes and sizes of plaintexts; `root` is over the pieces."""

    NAME: ClassVar[str] = "outerdelivered"
    MAX_BYTES: ClassVar[int] = 4_096
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    theta_key: Hex32
    theta_sha256: Hex32
    momenta_key: Hex32 | None = None
    momenta_sha256: Hex32 | None = None
    root: Hex32

    def commitment(self, provider: str, request: str, round_: int) -> str:
        """The event's `x`: the pieces' Merkle root, for whom and what it is."""
        return canonical.digest("nodewire/outer/1", [provider, request, round_, self.root])


@dataclass(frozen=True, slots=True)
class OuterDelivery:
    """A parsed result (6842); `momenta` is None where the method has none."""

    id: str
    provider: str
    request: str
    customer: str
    commitment: str
    theta: BlobRef
    momenta: BlobRef | None
    amount_msat: int
    ciphertext: str


def momenta_rows(recipe: Recipe) -> int:
    """How many numbers the outer optimizer keeps for every number of theta."""
    return _MOMENTA[recipe.outer.method]


def work_gflop(recipe: Recipe, inputs: int) -> int:
    """The step's work in gflop, rounded up.

    For every number of theta it is 20 operations, and for each of k inputs 4. It is 4 more for clip, 2 log2 k (rounded
    up) for trimmed and median, 3 k for krum.
    """
    k = inputs
    more = {"clip": 4, "krum": 3 * k}.get(recipe.outer.aggregate, 0)
    if recipe.outer.aggregate in ("trimmed", "median"):
        more = 2 * (k - 1).bit_length()
    return -(-recipe.trained() * (20 + k * (4 + more)) // 10**9)


def memory_bytes(recipe: Recipe, inputs: int) -> int:
    """A provider's peak above an empty worker.

    It is 4 x trained x (k + 14 + 3 momenta), 32 bytes x k x at most 2^18 numbers that are aggregated at a time, two
    packed updates, 8 MiB.

    Every update is unpacked as it comes; 14 is theta before and after, its file, and float64 on the way.
    """
    n = recipe.trained()
    held = 4 * n * (inputs + 14 + 3 * momenta_rows(recipe)) + 32 * inputs * min(n, _BLOCK)
    return held + 2 * recipe.upload_bytes() + _HEAP_BYTES


def tags_and_content(step: Optimization, *, relays: Sequence[str]) -> tuple[list[list[str]], str]:
    """Tags and content of a request's event; the customer adds the NIP-13 nonce and signs."""
    relay = relays[0] if relays else ""
    said = [
        ["i", step.theta.sha256, "blob"],
        *([["i", step.momenta.sha256, "blob"]] if step.momenta else []),
        *(["i", one.result, "job", relay] for one in step.inputs),
        ["output", OUTPUT],
        ["bid", str(step.price_msat)],
        ["t", TOPIC],
        ["param", "round", str(step.round)],
        ["relays", *relays],
        ["encrypted"],
        ["p", step.provider],
    ]
    return said, step.to_json()


def parse(event: Event) -> OuterRequest:
    """The request in `event`, whose signature has been checked.

    Raises:
        BadEvent, BadTag, BadVersion, TooLarge: with the field at fault.

    """
    tags.check_kind(event, kinds.OUTER)
    step = Optimization.parse(event.content)
    cited = [(tag[2], tag[1]) for tag in event.tags if tag[0] == "i" and len(tag) > 2]
    blobs = [blob.sha256 for blob in (step.theta, step.momenta) if blob is not None]
    if [what for kind, what in cited if kind == "blob"] != blobs:
        raise BadTag("i", "not the blobs of weights and momenta")
    if [what for kind, what in cited if kind == "job"] != [one.result for one in step.inputs]:
        raise BadTag("i", "not the results that the step is made of")
    if tags.number("bid", tags.text(event, "bid"), most=2**63 - 1) != step.price_msat:
        raise BadTag("bid", "not the price")
    if event.values("p") != [step.provider]:
        raise BadTag("p", "not the provider")
    tags.relays(event)
    return OuterRequest(event.id, event.pubkey, event.created_at, event.kind, step)


def is_ticket(text: str) -> bool:
    """Whether a ticket's JSON opens an outer step: it opens several updates."""
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return isinstance(said, dict) and "opens" in said


def check_ticket(ticket: OuterTicket, request: OuterRequest, recipe_digest: str, provider: str) -> Optimization:
    """What `provider` has to do, if the ticket is the one that the request has sealed for it.

    Raises:
        BadInput: it is for another request, recipe or provider, or does not open what the request cites.

    """
    step = request.round
    if step.provider != provider or ticket.request != request.id:
        raise BadInput("ticket", "of another request or provider")
    if ticket.seal() != step.ticket:
        raise BadInput("ticket", "not the one that the request has sealed")
    if job_of(request.customer, ticket.salt) != step.job:
        raise BadInput("salt", "not the job's")
    if seal_of(recipe_digest, ticket.salt) != step.seal:
        raise BadInput("recipe", "not the one that the request has sealed")
    if len(ticket.opens) != len(step.inputs):
        raise BadInput("opens", f"{len(ticket.opens)} for {len(step.inputs)} inputs")
    if {step.momenta is None} != {ticket.momenta_key is None, ticket.momenta_sha256 is None}:
        raise BadInput("momenta", "in the ticket or in the request alone")
    return step


@dataclass(frozen=True, slots=True)
class StepGoods:
    """What is delivered for a request, and what is still to be paid for it."""

    commitment: str
    theta: BlobRef
    momenta: BlobRef | None
    amount_msat: int
    ciphertext: str
    """NIP-44 of OuterDeliveryDetails."""


def build(keys: Keys, request: str, customer: str, goods: StepGoods, *, created_at: int) -> Event:
    """The result of a request."""
    said = [
        ["e", request],
        ["p", customer],
        ["x", goods.commitment],
        *(["i", blob.sha256, "blob", str(blob.bytes)] for blob in (goods.theta, goods.momenta) if blob is not None),
        ["amount", str(goods.amount_msat)],
        ["encrypted"],
    ]
    return _event.sign(keys, kinds.result_of(kinds.OUTER), created_at=created_at, content=goods.ciphertext, tags=said)


def parse_result(event: Event) -> OuterDelivery:
    """The result in `event`, whose signature has been checked.

    Raises:
        BadEvent, BadTag: with the field at fault.

    """
    tags.check_kind(event, kinds.result_of(kinds.OUTER))
    cited = [tag for tag in event.tags if tag[0] == "i"]
    if not 1 <= len(cited) <= 2 or any(len(tag) != 4 or tag[2] != "blob" for tag in cited):
        raise BadTag("i", "not [i, hash, blob, bytes] of weights and momenta")
    blobs = [BlobRef(sha256=tags.is_hex32("i", tag[1]), bytes=tags.number("i", tag[3])) for tag in cited]
    return OuterDelivery(
        id=event.id,
        provider=event.pubkey,
        request=tags.hex32(event, "e"),
        customer=tags.hex32(event, "p"),
        commitment=tags.hex32(event, "x"),
        theta=blobs[0],
        momenta=blobs[1] if len(blobs) > 1 else None,
        amount_msat=tags.number("amount", tags.text(event, "amount"), most=2**63 - 1),
        ciphertext=event.content,
    )
