"""Whether a provider takes an outer step: the sealed recipe, what fits, price and deposit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import NotAllowed, OverMemory, PaymentRequired, TooLarge
from nodewire.pay.accounts.debts import Key
from nodewire.protocol.model.families import HEADER_BYTES
from nodewire.store.sealed_blobs import sealed_bytes
from nodewire.training.protocol import outer_step
from nodewire.training.protocol.recipe import Recipe

if TYPE_CHECKING:
    from nodewire.training.protocol.outer_step import Optimization, OuterRequest, OuterTicket
    from nodewire.training.protocol.trainer_ad import Trainer


@dataclass(frozen=True, slots=True)
class AdmittedOuter:
    """One outer step that this provider makes."""

    request: OuterRequest
    ticket: OuterTicket
    recipe: Recipe
    assigned: Optimization

    def key(self, part: int) -> Key:
        """The payment of the deposit or the balance."""
        return Key(self.request.id, self.assigned.provider, part)


def check(request: OuterRequest, ticket: OuterTicket, public: str, trainer: Trainer) -> AdmittedOuter:
    """The step, if ticket, recipe and price are good.

    Raises:
        BadInput, BadRecipe: the ticket is not the sealed one, or its recipe is malformed.
        NotAllowed: a family that is not served here, or a round that the recipe has not.
        OverMemory, TooLarge: it does not fit this provider.
        PaymentRequired: less work, price or deposit than the ad's.

    """
    recipe = Recipe.from_document(ticket.recipe)
    step = outer_step.check_ticket(ticket, request, recipe.digest(), public)
    if recipe.family.name not in trainer.families:
        raise NotAllowed("family", f"{recipe.family.name} is not served here")
    if step.round >= recipe.rounds:
        raise NotAllowed("round", "more rounds than the recipe has")
    rows = outer_step.momenta_rows(recipe)
    if step.momenta is not None and not rows:
        raise NotAllowed("momenta", f"{recipe.outer.method} has none")
    needed = outer_step.memory_bytes(recipe, len(step.inputs))
    if needed > trainer.memory_bytes:
        raise OverMemory("memory_bytes", f"{needed} bytes, a job may take {trainer.memory_bytes} here")
    tensors = len(recipe.shapes())
    for name, blob, plain, times in (
        ("theta", step.theta, recipe.state_bytes(), 1),
        ("momenta", step.momenta, rows * recipe.state_bytes(), rows),
        *(("update", one.update, recipe.upload_bytes(), 3) for one in step.inputs),  # codes, scales and places
    ):
        most = min(sealed_bytes(plain + HEADER_BYTES * (times * tensors + 1)), trainer.most_bytes)
        if blob is not None and blob.bytes > most:
            raise TooLarge(name, f"{blob.bytes} bytes, at most {most}")
    work = outer_step.work_gflop(recipe, len(step.inputs))
    if step.gflop < work:
        raise PaymentRequired("gflop", f"{step.gflop}, the step is {work}")
    if step.price_msat < trainer.price_msat(step.gflop):
        raise PaymentRequired("price_msat", f"{step.price_msat} msat, at least {trainer.price_msat(step.gflop)} msat")
    if step.deposit_msat < trainer.deposit_msat(step.price_msat):
        raise PaymentRequired("deposit_msat", f"{step.deposit_msat} msat is less than this provider's deposit")
    return AdmittedOuter(request, ticket, recipe, step)
