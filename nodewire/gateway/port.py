"""What the gateway needs of a customer: `market.CustomerMarket` is the real one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np

    from nodewire.customer.tokens.token_chunk import Piece
    from nodewire.gateway.config import ModelConfig
    from nodewire.protocol.job.plan import Terms
    from nodewire.protocol.model.chat_template import ChatTemplate

Announced = Callable[[str, int, int], None]
"""Told every job before it is published: its id, what a chunk of it costs (msat, verification included), and how many
of the order's jobs may come to something with it, those among them that broke off or were left for a quicker ring."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A model as its manifest describes it now.

    `context` is the most positions of a session; `chunk` are those that one payment covers; `verify_share_ppm` comes on
    top of a job's price where it is verified.
    """

    digest: str
    address: str
    mode: Literal["generate", "embed", "run"]
    context: int
    chunk: int
    chat: ChatTemplate | None
    verify_share_ppm: int = 0

    @property
    def author(self) -> str:
        return self.address.split(":", 2)[1]


@dataclass(frozen=True, slots=True)
class Vectors:
    """`rows` float32 [n, width]; `tokens` is what the texts were, 0 if nobody said."""

    rows: np.ndarray
    tokens: int


class Order(Protocol):
    """One request's purchase. Either method is called once."""

    def generate(self, prompt: str, params: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        """Raises as `Customer.generate`; whoever closes it in the middle stops paying."""

    def embed(self, texts: list[str]) -> AsyncGenerator[Vectors, None]:
        """One item. Raises as `Customer.embed`."""

    @property
    def requests(self) -> tuple[str, ...]:
        """The ids of its jobs."""

    @property
    def cached_tokens(self) -> int:
        """Of its prompt, those that providers found and did not compute, as far as they have said it."""

    @property
    def moves(self) -> tuple[str, ...]:
        """What became of its moves to other rings."""

    @property
    def cost_msat(self) -> int:
        """What its jobs came to until now, routing fees and verification included, and what of it is yet to be paid."""


class Buyer(Protocol):
    async def offer(self, model: ModelConfig) -> Offer:
        """Raises BadInput, Ambiguous, NotFound, BadManifest ...: as `Customer.find_model` and `Market.manifest`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Those that the customer has pinned."""

    def order(self, model: ModelConfig, offer: Offer, terms: Terms, announced: Announced) -> Order: ...

    @property
    def terms(self) -> Terms:
        """The customer's own."""

    async def epoch(self) -> int:
        """The newest certified epoch. Raises NoQuorum: there is none that a job could stand on."""
