"""Whether a provider takes a shard of a round: form and debts first, then recipe, price and deposit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from nodewire.errors import BadInput, NotAllowed, NotFound, OverMemory, PaymentRequired, TooLarge
from nodewire.nostr.nips import nip13
from nodewire.pay.accounts.debts import Key
from nodewire.protocol import kinds
from nodewire.protocol.model.families import HEADER_BYTES
from nodewire.store.sealed_blobs import sealed_bytes
from nodewire.training.protocol import initial_weights, outer_step
from nodewire.training.protocol import round as rounds
from nodewire.training.protocol.recipe import Recipe
from nodewire.training.protocol.round import BALANCE, RoundRequest, RoundTicket, ShardAssignment, work_gflop
from nodewire.training.provider import outer_admission
from nodewire.training.provider.clock_watch import CLOCKS_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nodewire.kind import TrainingKind
    from nodewire.nostr.event import Event
    from nodewire.pay.accounts.dues import Due
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.training.protocol.outer_step import OuterRequest, OuterTicket
    from nodewire.training.protocol.trainer_ad import Trainer
    from nodewire.training.provider.outer_admission import AdmittedOuter


@dataclass(frozen=True, slots=True)
class AdmittedShard:
    """One shard of one round that this provider takes."""

    request: RoundRequest
    ticket: RoundTicket
    recipe: Recipe
    assigned: ShardAssignment
    kind: TrainingKind

    @property
    def start_sha256(self) -> str | None:
        """Of the frozen weights, where there are any."""
        frozen = initial_weights.frozen(self.recipe)
        return frozen.sha256 if frozen else None

    @property
    def start_name(self) -> str:
        """What a worker knows the frozen weights by from round to round: who has not their key cannot name them."""
        cited = self.request.round.start
        return f"{self.start_sha256}:{cited.sha256}:{self.ticket.start_key}" if cited else ""

    def key(self, part: int) -> Key:
        """The payment of the deposit or the balance."""
        return Key(self.request.id, self.assigned.provider, part)


class TrainingAdmission:
    """Checks requests against this provider's ad, and who owes it."""

    def __init__(self, public: str, trainer: Trainer, job_kinds: Mapping[int, TrainingKind], ledger: Ledger) -> None:
        self._public = public
        self._trainer = trainer
        self._kinds = job_kinds
        self._ledger = ledger
        self._last: tuple[bytes, Recipe, str] | None = None
        """The last ticket's recipe, as it stood there and as it was read, and its digest: a training's rounds have the
        same."""

    def glance(self, event: Event, now_s: float) -> RoundRequest | OuterRequest:
        """What needs no ticket.

        Raises:
            BadEvent, BadTag, BadVersion, TooLarge: the request is malformed.
            NotAllowed: too little work, another's round, a kind or time that is not served, or one that was served.
            PaymentRequired: the customer let an earlier balance pass its time.

        """
        nip13.check(event, self._trainer.pow_bits)
        request = outer_step.parse(event) if event.kind == kinds.OUTER else rounds.parse(event)
        if request.round.find_assignment(self._public) is None:
            raise NotAllowed("p", "this provider has no shard of it")
        if request.kind not in self._trainer.kinds or request.kind not in self._kinds:
            raise NotAllowed("kind", f"{request.kind} is not served here")
        if request.created_at > now_s + CLOCKS_S:
            raise NotAllowed("created_at", "in the future, where debts begin later")
        if now_s > request.created_at + request.round.deadline_s:
            raise NotAllowed("deadline_s", "it is over")
        if self._ledger.in_debt(request.customer, now_s):
            raise PaymentRequired("customer", "an earlier round is unpaid")
        if self._ledger.has_job(request.id):
            raise NotAllowed("id", "this request has been served")
        return request

    def check(self, request: RoundRequest, ticket: RoundTicket) -> AdmittedShard:
        """The shard, if ticket, recipe and price are good.

        Where a round before stands for the deposit, `before` says whether it does.

        Raises:
            BadInput, BadRecipe: the ticket is not the sealed one, its recipe is malformed or another kind's, or frozen
                weights are missing, of another size, or for nothing.
            Unsupported: what no provider of this version trains.
            NotAllowed: a family that is not trained here, or more steps than the recipe has.
            OverMemory, TooLarge: it does not fit this provider.
            PaymentRequired: less than the ad's price, or than its deposit of a first round.

        """
        recipe, digest = self._read(ticket)
        assigned = rounds.check_ticket(ticket, request, digest, self._public)
        kind = self._kinds[request.kind]
        kind.check(recipe)
        rounds.check_supported(recipe)
        trainer = self._trainer
        if recipe.family.name not in trainer.families:
            raise NotAllowed("family", f"{recipe.family.name} is not trained here")
        if assigned.steps > recipe.steps or request.round.round >= recipe.rounds:
            raise NotAllowed("steps", "more steps or rounds than the recipe has")
        needed = recipe.round_bytes(assigned.data.bytes)
        if max(needed, recipe.hardware.memory_bytes) > trainer.memory_bytes:
            raise OverMemory("memory_bytes", f"{needed} bytes, a round may take {trainer.memory_bytes} here")
        most_theta = sealed_bytes(recipe.state_bytes() + HEADER_BYTES * (len(recipe.shapes()) + 1))
        if request.round.theta.bytes > min(most_theta, trainer.most_bytes):
            raise TooLarge("theta", f"{request.round.theta.bytes} bytes, at most {most_theta} for this model")
        self._check_start(request, ticket, recipe)
        if assigned.data.bytes > trainer.most_bytes:
            raise TooLarge("data", f"{assigned.data.bytes} bytes, at most {trainer.most_bytes}")
        if assigned.gflop < work_gflop(recipe, assigned.steps):
            raise PaymentRequired("gflop", f"{assigned.gflop}, the recipe's steps are more work")
        if assigned.price_msat < trainer.price_msat(assigned.gflop):
            raise PaymentRequired(
                "price_msat", f"{assigned.price_msat} msat, at least {trainer.price_msat(assigned.gflop)} msat"
            )
        if request.round.previous is None and not self.has_deposit(assigned):
            raise PaymentRequired("deposit_msat", f"{assigned.deposit_msat} msat is less than this provider's deposit")
        return AdmittedShard(request, ticket, recipe, assigned, kind)

    def _read(self, ticket: RoundTicket) -> tuple[Recipe, str]:
        """The ticket's recipe and its digest. Raises BadRecipe, BadVersion."""
        document = orjson.dumps(ticket.recipe)  # unlike dicts, tells 1 from True
        if self._last is None or self._last[0] != document:
            recipe = Recipe.from_document(ticket.recipe)
            self._last = document, recipe, recipe.digest()
        return self._last[1:]

    def check_outer(self, request: OuterRequest, ticket: OuterTicket) -> AdmittedOuter:
        """The outer step, if this provider makes it. Raises as `outer_admission.check`."""
        return outer_admission.check(request, ticket, self._public, self._trainer)

    def _check_start(self, request: RoundRequest, ticket: RoundTicket, recipe: Recipe) -> None:
        """That the frozen weights are there where an adapter needs them, and of the size that the recipe says."""
        frozen, cited = initial_weights.frozen(recipe), request.round.start
        if frozen is None:
            if cited is not None or ticket.start_key is not None:
                raise BadInput("start", "the recipe freezes nothing")
            return
        if cited is None or ticket.start_key is None:
            raise BadInput("start", "missing, though the recipe has an adapter")
        if cited.bytes != sealed_bytes(frozen.bytes):
            raise BadInput("start", f"{cited.bytes} bytes, not {sealed_bytes(frozen.bytes)}")
        if cited.bytes > self._trainer.most_bytes:
            raise TooLarge("start", f"{cited.bytes} bytes, at most {self._trainer.most_bytes}")

    def has_deposit(self, assigned: ShardAssignment) -> bool:
        """Whether the request pays this provider's deposit before the work."""
        return assigned.deposit_msat >= self._trainer.deposit_msat(assigned.price_msat)

    def before(self, job: AdmittedShard) -> Due:
        """What the customer owed for the round before, whose payment stands for a deposit.

        Raises:
            PaymentRequired: it owed nothing.

        """
        previous = job.request.round.previous
        try:
            due = self._ledger.due(Key(previous or "", self._public, BALANCE))
        except NotFound as error:
            raise PaymentRequired("deposit_msat", "no round before this one was served here") from error
        if due.customer != job.request.customer:
            raise PaymentRequired("deposit_msat", "the round before was another customer's")
        return due
