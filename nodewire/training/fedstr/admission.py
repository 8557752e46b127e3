"""Whether a request in FEDSTR's layout is taken: debts and time first; then, in our own terms, as any other round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import NotAllowed, PaymentRequired
from nodewire.nostr.nips import nip13
from nodewire.protocol.model.manifest import BlobRef
from nodewire.store import sealed_blobs
from nodewire.training.fedstr import events
from nodewire.training.protocol.round import (
    BALANCE,
    Round,
    RoundRequest,
    RoundTicket,
    ShardAssignment,
    job_of,
    seal_of,
    work_gflop,
)
from nodewire.training.provider.clock_watch import CLOCKS_S

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.training.fedstr.events import FedstrRequest, Source
    from nodewire.training.protocol.trainer_ad import Trainer
    from nodewire.training.provider.admission import AdmittedShard, TrainingAdmission

MAX_UNPAID = 2
"""Results of one customer that wait for their balance."""


class FedstrAdmission:
    """Checks requests of kind 8000 against this provider's ad, and who owes it."""

    def __init__(self, keys: Keys, trainer: Trainer, admission: TrainingAdmission, ledger: Ledger) -> None:
        self._keys = keys
        self._trainer = trainer
        self._admission = admission
        self._ledger = ledger

    def glance(self, event: Event, now_s: float) -> FedstrRequest:
        """What can be said before anything is fetched.

        Raises:
            BadTag, BadEvent, BadRecipe, TooLarge, Unsupported: as `events.parse`.
            NotAllowed: too little work, a run or time that is not served.
            PaymentRequired: the customer let an earlier balance pass its time, or has too many open, or bids less than
                the price.

        """
        nip13.check(event, self._trainer.pow_bits)
        if self._ledger.in_debt(event.pubkey, now_s):
            raise PaymentRequired("customer", "an earlier round is unpaid")
        if self._ledger.open_dues(event.pubkey, BALANCE) >= MAX_UNPAID:
            raise PaymentRequired("customer", f"{MAX_UNPAID} results are not paid yet")
        if event.created_at > now_s + CLOCKS_S:
            raise NotAllowed("created_at", "in the future, where debts begin later")
        asked = events.parse(event, self._keys)
        if asked.kind not in self._trainer.kinds:
            raise NotAllowed("run", "not served here")
        if now_s > asked.created_at + asked.deadline_s:
            raise NotAllowed("deadline", "it is over")
        price_msat = self._price_msat(asked)
        if asked.bid_msat is not None and asked.bid_msat < price_msat:
            raise PaymentRequired("bid", f"{asked.bid_msat} msat, at least {price_msat} msat")
        return asked

    def check(self, asked: FedstrRequest, state: Source, data: Source) -> AdmittedShard:
        """The round in our own terms. Raises as `TrainingAdmission.check`."""
        return self._admission.check(*self._translated(asked, state, data))

    def _translated(self, asked: FedstrRequest, state: Source, data: Source) -> tuple[RoundRequest, RoundTicket]:
        """What a customer of kind 8840 or 8841 would have sent. Nobody has: it is sealed with the request's own id."""
        recipe, price_msat = asked.recipe, self._price_msat(asked)
        ticket = RoundTicket(
            request=asked.id,
            index=asked.index,
            salt=asked.id,
            recipe=recipe.document(),
            theta_key=state.key or sealed_blobs.new_key(),
            theta_sha256=state.sha256,
            shard_key=data.key or sealed_blobs.new_key(),
            shard_sha256=data.sha256,
        )
        assigned = ShardAssignment(
            index=asked.index,
            provider=self._keys.public,
            data=_blob(data),
            steps=recipe.steps,
            gflop=work_gflop(recipe, recipe.steps),
            price_msat=price_msat,
            deposit_msat=self._trainer.deposit_msat(price_msat),
            ticket=ticket.seal(),
        )
        round_ = Round(
            job=job_of(asked.customer, asked.id),
            round=asked.round,
            seal=seal_of(recipe.digest(), asked.id),
            theta=_blob(state),
            shards=(assigned,),
            deadline_s=asked.deadline_s,
        )
        return RoundRequest(asked.id, asked.customer, asked.created_at, asked.kind, round_), ticket

    def _price_msat(self, asked: FedstrRequest) -> int:
        return self._trainer.price_msat(work_gflop(asked.recipe, asked.recipe.steps))


def stored_bytes(source: Source) -> int:
    """How much is fetched for it."""
    return source.size if source.key is None else sealed_blobs.sealed_bytes(source.size)


def _blob(source: Source) -> BlobRef:
    return BlobRef(sha256=source.sha256, bytes=stored_bytes(source))
