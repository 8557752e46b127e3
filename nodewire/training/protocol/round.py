"""A round of training as a job request (kinds 8840, 8841), and the tickets that open it. nips/34-training-rounds.md.

The request is public: which ciphertext goes to which provider, how many steps each makes of it, what each is paid.
Recipe, keys and the plaintexts' hashes travel in tickets (rumors 28841 in ephemeral gift wraps, one to each provider).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import orjson
from pydantic import Field, model_validator

from nodewire.errors import BadEvent, BadInput, BadTag, Unsupported
from nodewire.protocol import kinds
from nodewire.protocol.encoding import canonical, tags
from nodewire.protocol.encoding.schema import Count, Hex32, Msat, Schema
from nodewire.protocol.model import inline_blob as inline
from nodewire.protocol.model.manifest import BlobRef
from nodewire.training.protocol import initial_weights as start
from nodewire.training.protocol.recipe import MAX_SHARDS, Recipe
from nodewire.training.protocol.trainer_ad import TOPIC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.nostr.event import Event

MAX_ASSIGNED = 128
"""Shards of one request: an event has 64 KB. A larger round is several requests."""
MAX_ROUNDS = 1_000_000
OUTPUT = "application/safetensors"
DEPOSIT, BALANCE = 0, 1
"""A round's two payments, as the ledger's chunks: before the work, and after it was judged."""


class ShardAssignment(Schema):
    """One shard's work in one round. `data` is the shard's ciphertext, `gflop` the work by the recipe's formula."""

    index: int = Field(ge=0, lt=MAX_SHARDS)
    provider: Hex32
    data: BlobRef
    steps: int = Field(ge=1, le=2**24)
    gflop: Count
    price_msat: Msat
    deposit_msat: Msat
    """The part of the price that is paid first; nothing where the provider was paid for `Round.previous`."""
    ticket: Hex32
    """RoundTicket.seal() of the provider's ticket."""

    @property
    def balance_msat(self) -> int:
        """What is paid when the result has been judged."""
        return self.price_msat - self.deposit_msat


class Round(Schema):
    """A provider stands once in a request: shards that another has to take over stand in a further one."""

    MAX_BYTES: ClassVar[int] = 57_344
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    job: Hex32
    """`job_of` the customer and the salt in the tickets: what the rounds of one training have in common."""
    round: int = Field(ge=0, lt=MAX_ROUNDS)
    seal: Hex32
    """`seal_of` the recipe and the salt: confirms no guess, and fixes one recipe for all."""
    theta: BlobRef
    """The ciphertext of the weights that the round begins with."""
    start: BlobRef | None = None
    """The ciphertext of the weights that stay as they are, where the recipe has an adapter; the same in all rounds."""
    shards: tuple[ShardAssignment, ...] = Field(min_length=1, max_length=MAX_ASSIGNED)
    previous: Hex32 | None = None
    """The request of the round before this one, if there was any."""
    deadline_s: int = Field(ge=1, le=31_536_000)
    """How long the customer waits for results, from `created_at`."""
    inline: int = Field(default=0, ge=0, le=inline.MAX_BYTES)
    """The longest result that may stand in its own event."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        indices = [shard.index for shard in self.shards]
        if indices != sorted(set(indices)):
            raise ValueError("shards: not in ascending order")
        if len({shard.provider for shard in self.shards}) != len(self.shards):
            raise ValueError("shards: a provider stands twice")
        if any(shard.deposit_msat > shard.price_msat for shard in self.shards):
            raise ValueError("shards: a deposit above its price")
        return self

    def find_assignment(self, provider: str) -> ShardAssignment | None:
        """What `provider` has to do."""
        return next((shard for shard in self.shards if shard.provider == provider), None)

    @property
    def total_msat(self) -> int:
        return sum(shard.price_msat for shard in self.shards)


@dataclass(frozen=True, slots=True)
class RoundRequest:
    """A parsed request. `id`, `customer` and `created_at` are the event's; `kind` is 8840 or 8841."""

    id: str
    customer: str
    created_at: int
    kind: int
    round: Round
    theta: bytes | None = None
    """The weights' ciphertext, where it stands in the event."""


class RoundTicket(Schema):
    """Opens one shard of one round at one provider. Keys are of one blob each, 32 bytes as hex."""

    TAG: ClassVar[str] = "nodewire/round-ticket/1"
    MAX_BYTES: ClassVar[int] = 24_576
    ERROR: ClassVar[type[BadInput]] = BadInput

    v: Literal[1] = 1
    request: Hex32
    index: int = Field(ge=0, lt=MAX_SHARDS)
    salt: Hex32
    recipe: dict[str, Any]
    """The recipe's document; its digest and `salt` give the request's seal."""
    theta_key: Hex32
    theta_sha256: Hex32
    """Of the plaintext, as `shard_sha256`."""
    shard_key: Hex32
    shard_sha256: Hex32
    start_key: Hex32 | None = None
    """With an adapter; what is sealed is the file that the recipe's `family.start` cites."""
    carried: Hex32 | None = None
    """What this provider said, when it delivered this shard in the round before, that it carries on from there; it
    begins with that. None: with nothing, as in the first round and for whoever takes a shard over."""

    def seal(self) -> str:
        """What the request says of the ticket, before it has an id: all but the id."""
        said = self.document()
        del said["request"]
        return canonical.digest(self.TAG, said)


def work_gflop(recipe: Recipe, steps: int) -> int:
    """The work of so many of a recipe's steps, in gflop, rounded up: what a round's price goes by."""
    return -(-(recipe.flops_per_round() // recipe.steps) * steps // 10**9)


def check_supported(recipe: Recipe) -> None:
    """Whether rounds of this recipe can be bought so far.

    Raises:
        BadRecipe: a file that it cites cannot be of the size that it says.
        Unsupported: providers carry something from round to round that nobody audits.

    """
    start.check(recipe)
    if recipe.compression.carries and not float(recipe.audit.fraction):
        raise Unsupported("audit.fraction", "what providers carry from round to round is only known by audits")


def job_of(customer: str, salt: str) -> str:
    """The id of a whole training: nobody else can have it, and it does not give the salt away."""
    return canonical.digest("nodewire/training/1", [customer, salt])


def seal_of(recipe_digest: str, salt: str) -> str:
    """What a request says of its recipe."""
    return canonical.digest("nodewire/recipe-seal/1", [recipe_digest, salt])


def tags_and_content(
    round_: Round, *, relays: Sequence[str], theta: bytes | None = None
) -> tuple[list[list[str]], str]:
    """Tags and content of a request's event; the customer adds the NIP-13 nonce and signs.

    Args:
        round_: whom the request asks, and for what.
        relays: where the customer hears answers.
        theta: the weights' ciphertext, to stand in the event if there is room: where not, it has to be on a server.

    """
    said = [
        ["i", round_.theta.sha256, "blob"],
        *([["i", round_.previous, "job", relays[0] if relays else ""]] if round_.previous else []),
        ["output", OUTPUT],
        ["bid", str(round_.total_msat)],
        ["t", TOPIC],
        ["param", "round", str(round_.round)],
        ["relays", *relays],
        ["encrypted"],
        *(["p", shard.provider] for shard in round_.shards),
    ]
    content = round_.to_json()
    if theta is not None:
        said += inline.tag(theta, len(orjson.dumps([said, content])) + 1_024)
    return said, content


def parse(event: Event) -> RoundRequest:
    """The request in `event`, whose signature has been checked.

    Raises:
        BadEvent, BadTag, BadVersion, TooLarge: with the field at fault.

    """
    if event.kind not in kinds.ROUNDS:
        raise BadEvent("kind", f"{event.kind} is no round of training")
    round_ = Round.parse(event.content)
    inputs = {tag[2]: tag[1] for tag in event.tags if tag[0] == "i" and len(tag) > 2}
    if inputs.get("blob") != round_.theta.sha256:
        raise BadTag("i", "no blob that is the round's weights")
    if inputs.get("job") != round_.previous:
        raise BadTag("i", "another job than the round before")
    if tags.number("bid", tags.text(event, "bid"), most=2**63 - 1) != round_.total_msat:
        raise BadTag("bid", "not the sum of the prices")
    if event.values("p") != [shard.provider for shard in round_.shards]:
        raise BadTag("p", "not the round's providers")
    tags.relays(event)
    theta = inline.find_bytes(event, round_.theta)
    return RoundRequest(event.id, event.pubkey, event.created_at, event.kind, round_, theta)


def is_ticket(text: str) -> bool:
    """Whether a ticket's JSON opens something of a training and not a job of inference: it has a recipe.

    Of a training it opens a round's shard, or an outer step.
    """
    try:
        said = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return isinstance(said, dict) and "recipe" in said


def check_ticket(ticket: RoundTicket, request: RoundRequest, recipe_digest: str, provider: str) -> ShardAssignment:
    """What `provider` has to do, if the ticket is the one that the request has sealed for it.

    Raises:
        BadInput: it is for another request, shard, recipe or provider.

    """
    assigned = request.round.find_assignment(provider)
    if assigned is None or ticket.request != request.id or ticket.index != assigned.index:
        raise BadInput("ticket", "of another request or shard")
    if ticket.seal() != assigned.ticket:
        raise BadInput("ticket", "not the one that the request has sealed")
    if job_of(request.customer, ticket.salt) != request.round.job:
        raise BadInput("salt", "not the job's")
    if seal_of(recipe_digest, ticket.salt) != request.round.seal:
        raise BadInput("recipe", "not the one that the request has sealed")
    return assigned
