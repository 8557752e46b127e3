"""The gateway's port as the customer role fills it: one customer, many orders at a time."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from nodewire.core.bounded_dict import BoundedDict
from nodewire.customer.api import CallListener, Customer
from nodewire.customer.models.names import ModelAt
from nodewire.gateway.port import Announced, Offer, Vectors
from nodewire.pay.bond.settlement import job_share_ppm

if TYPE_CHECKING:
    from nodewire.customer.job.job import Purchase
    from nodewire.customer.job.session import PlannedJob
    from nodewire.customer.tokens.token_chunk import Piece
    from nodewire.gateway.config import ModelConfig
    from nodewire.pay.accounts.debts import Debt
    from nodewire.protocol.job.plan import Terms

_Requested = Callable[[str, int], None]
"""Told a job's id and what a chunk of it costs (msat)."""
_FRESH_S = 10.0
"""For so long what a manifest said is not asked for again."""
_KEPT_OFFERS = 256
_EPOCH_S = 5.0


class CustomerMarket:
    """Of one open customer, whose `announce` it takes."""

    def __init__(self, customer: Customer) -> None:
        self._customer = customer
        self._offers = BoundedDict[str, tuple[float, Offer]](_KEPT_OFFERS)
        self._orders: dict[PlannedJob, _Requested] = {}
        """Who is told what of purchases that are under way."""
        customer.session.announce = self._announce

    @property
    def terms(self) -> Terms:
        return self._customer.terms

    async def offer(self, model: ModelConfig) -> Offer:
        known = self._offers.get(model.name)
        if known is not None and time.monotonic() - known[0] < _FRESH_S:
            return known[1]
        market = self._customer.session.market
        found = await self._customer.find_model(model.manifest or model.name)
        manifest = await market.manifest(found.address, model.digest or found.digest)
        digest, chat = manifest.digest(), None
        if manifest.chat is not None:
            chat = await self._customer.chat_template(ModelAt(found.address, digest))
        offer = Offer(
            digest,
            found.address,
            manifest.mode,
            manifest.context,
            manifest.chunk,
            chat,
            market.committee.verify_share_ppm,
        )
        self._offers.pop(model.name, None)
        self._offers[model.name] = time.monotonic(), offer
        return offer

    @property
    def names(self) -> tuple[str, ...]:
        return self._customer.pinned

    def order(self, model: ModelConfig, offer: Offer, terms: Terms, announced: Announced) -> CustomerOrder:
        return CustomerOrder(self._customer, self._orders, model, offer, terms, announced)

    async def epoch(self) -> int:
        return (await self._customer.session.market.epoch(timeout_s=_EPOCH_S)).body.epoch

    def cost_msat(self, request: str) -> int:
        """What a job of this customer came to, by its ledger; it need not be this process's."""
        return booked_msat(self._customer.session.payer.debts_of(request))

    async def _announce(self, purchase: PlannedJob) -> None:
        if purchase in self._orders:
            plan = purchase.plan
            share_ppm = job_share_ppm(plan.verification.share_ppm, purchase.most_units)
            self._orders[purchase](purchase.request.id, plan.chunk_msat + -(-plan.chunk_msat * share_ppm // 1_000_000))


class CustomerOrder:
    """An order of `CustomerMarket`."""

    def __init__(
        self,
        customer: Customer,
        orders: dict[PlannedJob, _Requested],
        model: ModelConfig,
        offer: Offer,
        terms: Terms,
        announced: Announced,
    ) -> None:
        self._customer, self._orders, self._model, self._offer = customer, orders, model, offer
        self._terms, self._announced = terms, announced
        self._purchases: list[Purchase] = []
        self._requests: list[str] = []
        self._moves: list[str] = []

    async def generate(self, prompt: str, params: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        made = self._customer.generate(
            ModelAt(self._offer.address, self._offer.digest),
            prompt,
            terms=self._terms,
            listener=CallListener(self._begun, moved=lambda move: self._moves.append(str(move.outcome))),
            **params,
        )
        try:
            async with aclosing(made) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            self._over()

    async def embed(self, texts: list[str]) -> AsyncGenerator[Vectors, None]:
        done: dict[str, Any] = {}
        try:
            rows = await self._customer.embed(
                ModelAt(self._offer.address, self._offer.digest),
                texts,
                terms=self._terms,
                listener=CallListener(self._begun, done.update),
            )
            yield Vectors(rows, int(done["tokens"]))
        finally:
            self._over()

    @property
    def requests(self) -> tuple[str, ...]:
        return tuple(self._requests)

    @property
    def moves(self) -> tuple[str, ...]:
        return tuple(self._moves)

    @property
    def cached_tokens(self) -> int:
        return max((purchase.cached_tokens for purchase in self._purchases), default=0)

    @property
    def cost_msat(self) -> int:
        payer = self._customer.session.payer
        return sum(booked_msat(payer.debts_of(request)) for request in self._requests)

    def _begun(self, purchase: Purchase) -> None:
        self._purchases.append(purchase)
        self._orders[purchase] = self._requested

    def _requested(self, request: str, chunk_msat: int) -> None:
        self._requests.append(request)
        self._announced(request, chunk_msat, sum(purchase.is_underway for purchase in self._purchases))

    def _over(self) -> None:
        for purchase in self._purchases:
            self._orders.pop(purchase, None)


def booked_msat(debts: list[Debt]) -> int:
    """What is paid or owed for a job: to providers, for verification, and fees."""
    return sum(debt.amount_msat + debt.fee_msat for debt in debts)
