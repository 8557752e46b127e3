"""A training under way: where it stands, and what those who act on it work with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.training.customer.machine.state import State
from nodewire.training.customer.machine.transitions import apply
from nodewire.training.customer.market.delivery_cache import Deliveries
from nodewire.training.customer.market.trainer_ads import Ads
from nodewire.training.customer.policy.life_signs import LifeSigns

if TYPE_CHECKING:
    from nodewire.nostr.event import Event as Answer
    from nodewire.training.customer.machine.events import Event
    from nodewire.training.customer.machine.journal import Journal
    from nodewire.training.customer.market.coordinator_client import Coordinator
    from nodewire.training.customer.market.round_request import Requests
    from nodewire.training.customer.market.session import TrainingSession
    from nodewire.training.customer.policy.payment_retry import PaymentWait
    from nodewire.training.protocol.recipe import Recipe
    from nodewire.training.protocol.result import Progress

OnChange = Callable[[State, "Event | Progress | PaymentWait", str], None]
"""Told of every event, every progress and what the end waits for, with the provider that it is of ("" if none)."""


@dataclass(frozen=True, slots=True)
class TrainingOrder:
    """How a training is bought: on so many shards, for so much at most, and its outer steps, too, or not."""

    shards: int
    budget_msat: int
    buys_steps: bool = False
    """Whether outer steps are asked for on the market (8842), as far as the budget has room for them."""


class Course:
    """`record` is the only way on; what is still to be done is what `next_actions` says of `state`."""

    def __init__(
        self,
        session: TrainingSession,
        recipe: Recipe,
        kind: int,
        journal: Journal,
        coordinator: Coordinator,
        requests: Requests,
        order: TrainingOrder,
        *,
        on_change: OnChange | None = None,
    ) -> None:
        self.session = session
        self.recipe = recipe
        self.kind = kind
        self.journal = journal
        self.coordinator = coordinator
        self.requests = requests
        self.shards = order.shards
        self.budget_msat = order.budget_msat
        self.buys_steps = order.buys_steps
        self.on_change = on_change or (lambda state, event, provider: None)
        self.state = State()
        self.ads = Ads(session.pool)
        self.deliveries = Deliveries(session.keys)
        self.changed = asyncio.Event()
        self.answers: dict[tuple[str, str], asyncio.Future[Answer]] = {}
        """By request and provider, what audits wait for."""
        self.asked_s: dict[str, float] = {}
        """By request, when it went out (monotonic); not of those that went out before a crash."""
        self.begun_s = time.monotonic()
        """When this process took the training up."""
        self.hearing = LifeSigns(session.pool)
        self.refused: dict[str, bool] = {}
        """Providers whose last payment has failed, and whether because their endpoint takes no connection."""
        self.forgiven: frozenset[str] = frozenset()
        """Who failed in this round before this process took it up, and may be asked once more."""

    def record(self, event: Event) -> None:
        """Something happened: it is written down, and what is pending is looked at again."""
        after = apply(event, self.state)
        if after is self.state:
            return
        self.journal.append(event)
        if len(after.failures) > len(self.state.failures):
            self.forgiven -= {after.failures[-1][0]}
        self.state = after
        self.changed.set()
        self.on_change(after, event, getattr(event, "provider", ""))
