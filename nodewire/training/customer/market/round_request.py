"""A round's request and its tickets: who gets which shard, sealed and signed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodewire.errors import TooLarge
from nodewire.nostr import event as events
from nodewire.nostr.nips import nip13
from nodewire.protocol import kinds
from nodewire.protocol.model import inline_blob as inline
from nodewire.protocol.model.manifest import BlobRef
from nodewire.training.customer.machine.events import CiphertextRef, RequestPublication, Row
from nodewire.training.protocol import outer_step
from nodewire.training.protocol import round as rounds
from nodewire.training.protocol.outer_step import Input, Optimization, OuterTicket
from nodewire.training.protocol.round import Round, RoundTicket, ShardAssignment, work_gflop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.training.protocol.recipe import Recipe
    from nodewire.training.protocol.trainer_ad import Trainer

_UNKNOWN = "0" * 64


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request says: the shards in ascending order, each with its provider.

    It says the steps that each provider makes, and the request before for all.
    """

    round: int
    dealt: Sequence[tuple[int, str]]
    steps: Mapping[str, int]
    previous: str | None
    carried: Mapping[int, str] = field(default_factory=dict)
    """By shard, what its provider carries on from the round before."""
    inline: int = inline.MAX_BYTES
    """The longest result that may stand in its own event."""


@dataclass(frozen=True, slots=True)
class StepInput:
    """A result that an outer step is made of; `key` and `sha256` open its update."""

    input: Input
    key: str
    sha256: str


class Requests:
    """All requests of one training. `salt` is the job's secret."""

    def __init__(self, keys: Keys, recipe: Recipe, kind: int, salt: str, relays: tuple[str, ...]) -> None:
        self._keys = keys
        self._recipe = recipe
        self._document = recipe.document()
        self._digest = recipe.digest()
        self._kind = kind
        self._salt = salt
        self._relays = relays
        self.job = rounds.job_of(keys.public, salt)

    def price(self, provider: str, market: Mapping[str, Trainer], steps: int, previous: str | None) -> tuple[int, int]:
        """Price and deposit of so many steps of one shard's round at a provider."""
        ad = market[provider]
        price_msat = ad.price_msat(work_gflop(self._recipe, steps))
        return price_msat, ad.deposit_msat(price_msat) if previous is None else 0

    async def make(
        self,
        ask: Ask,
        market: Mapping[str, Trainer],
        theta: CiphertextRef,
        shards: Sequence[CiphertextRef],
        start: CiphertextRef | None = None,
        inline_theta: bytes | None = None,
    ) -> tuple[RequestPublication, Event]:
        """The signed request with the tickets that open it, and its event.

        `inline_theta` stands in it, if there is room.
        """
        recipe, assigned, tickets = self._recipe, [], []
        for index, provider in ask.dealt:
            shard = shards[index]
            ticket = RoundTicket(
                request=_UNKNOWN,
                index=index,
                salt=self._salt,
                recipe=self._document,
                theta_key=theta.key,
                theta_sha256=theta.plain_sha256,
                shard_key=shard.key,
                shard_sha256=shard.plain_sha256,
                start_key=start.key if start else None,
                carried=ask.carried.get(index),
            )
            steps = ask.steps[provider]
            price_msat, deposit_msat = self.price(provider, market, steps, ask.previous)
            assigned.append(
                ShardAssignment(
                    index=index,
                    provider=provider,
                    data=BlobRef(sha256=shard.sha256, bytes=shard.bytes),
                    steps=steps,
                    gflop=work_gflop(recipe, steps),
                    price_msat=price_msat,
                    deposit_msat=deposit_msat,
                    ticket=ticket.seal(),
                )
            )
            tickets.append(ticket)
        round_ = Round(
            job=self.job,
            round=ask.round,
            seal=rounds.seal_of(self._digest, self._salt),
            theta=BlobRef(sha256=theta.sha256, bytes=theta.bytes),
            start=BlobRef(sha256=start.sha256, bytes=start.bytes) if start else None,
            shards=tuple(assigned),
            previous=ask.previous,
            deadline_s=recipe.deadline,
            inline=ask.inline,
        )
        tags, content = rounds.tags_and_content(round_, relays=self._relays, theta=inline_theta)
        bits = max(market[provider].pow_bits for _, provider in ask.dealt)
        event = await self._signed(self._kind, tags, content, bits)
        rows = tuple(
            Row(
                index=one.index,
                provider=one.provider,
                steps=one.steps,
                deposit_msat=one.deposit_msat,
                balance_msat=one.balance_msat,
                lnurl=market[one.provider].lnurl,
                ticket=ticket.model_copy(update={"request": event.id}).to_json(),
                credit_msat=market[one.provider].credit_msat,
                unit_msat=market[one.provider].unit_msat,
            )
            for one, ticket in zip(assigned, tickets, strict=True)
        )
        return RequestPublication(ask.round, event.id, event.to_json(), rows), event

    async def make_step(
        self,
        round_: int,
        used: Sequence[StepInput],
        ad: tuple[str, Trainer],
        theta: CiphertextRef,
        momenta: CiphertextRef | None,
    ) -> tuple[Event, Row]:
        """The signed request for a round's outer step, and what is agreed on with its provider.

        Raises:
            TooLarge: it does not fit into an event, or its ticket not into a wrap.
            BadInput: more results than one request takes.

        """
        recipe, (provider, trainer) = self._recipe, ad
        ticket = OuterTicket.from_document(
            {
                "v": 1,
                "request": _UNKNOWN,
                "salt": self._salt,
                "recipe": self._document,
                "theta_key": theta.key,
                "theta_sha256": theta.plain_sha256,
                "momenta_key": momenta.key if momenta else None,
                "momenta_sha256": momenta.plain_sha256 if momenta else None,
                "opens": [(one.key, one.sha256) for one in used],
            }
        )
        gflop = outer_step.work_gflop(recipe, len(used))
        price_msat = trainer.price_msat(gflop)
        step = Optimization(
            job=self.job,
            round=round_,
            seal=rounds.seal_of(self._digest, self._salt),
            provider=provider,
            theta=BlobRef(sha256=theta.sha256, bytes=theta.bytes),
            momenta=BlobRef(sha256=momenta.sha256, bytes=momenta.bytes) if momenta else None,
            inputs=tuple(one.input for one in used),
            gflop=gflop,
            price_msat=price_msat,
            deposit_msat=trainer.deposit_msat(price_msat),
            ticket=ticket.seal(),
            deadline_s=recipe.deadline,
        )
        tags, content = outer_step.tags_and_content(step, relays=self._relays)
        opened = ticket.model_copy(update={"request": step.ticket}).to_json()
        if len(opened) > OuterTicket.MAX_BYTES or len(content) > Optimization.MAX_BYTES:
            raise TooLarge("inputs", f"{len(used)} are too many for a ticket")
        event = await self._signed(kinds.OUTER, tags, content, trainer.pow_bits)
        ticket = ticket.model_copy(update={"request": event.id})
        parts, unit_msat = (step.deposit_msat, step.balance_msat), trainer.unit_msat
        return event, Row(-1, provider, 0, *parts, trainer.lnurl, ticket.to_json(), unit_msat=unit_msat)

    async def _signed(self, kind: int, tags: list[list[str]], content: str, bits: int) -> Event:
        """The event, with as much NIP-13 work as is asked for."""
        now_s = int(time.time())
        if bits:
            mined = await asyncio.to_thread(
                nip13.mine, self._keys.public, kind, bits, created_at=now_s, content=content, tags=tags
            )
            tags = [list(tag) for tag in mined]
        return events.sign(self._keys, kind, created_at=now_s, content=content, tags=tags)
