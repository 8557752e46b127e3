"""A gateway in this process whose customer is a stand-in: what it sells is fixed, and it notes what is asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from nodewire.chat.renderer import Renderer
from nodewire.customer.tokens.logprobs import Likely
from nodewire.customer.tokens.token_chunk import Piece
from nodewire.errors import Busy, NodewireError, NotFound
from nodewire.gateway.accounts import Accounts
from nodewire.gateway.app import Gateway
from nodewire.gateway.config import GatewayConfig, ModelConfig
from nodewire.gateway.counters import Figures, GatewayCollector
from nodewire.gateway.desk import Desk
from nodewire.gateway.keys import Keys, sha256_of
from nodewire.gateway.openai.refusals import document
from nodewire.gateway.port import Announced, Offer, Vectors
from nodewire.metrics.endpoint import MetricsExposition, Scrapes
from nodewire.net import http_server
from nodewire.protocol.job.plan import Terms
from nodewire.protocol.model.chat_template import ChatTemplate

KEY = "sk-of-somebody-with-means"
AUTHOR = "ab" * 32
PRICE_MSAT = 700
COME_LATER = document(Busy("connections", "others need the room"))
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} answer in <tool_call>{% endif %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    "{% if enable_thinking is false %}at once{% endif %}"
)
OFFERS = {
    "talker": Offer("11" * 32, f"38840:{AUTHOR}:talker", "generate", 1_000, 64, ChatTemplate(template=TEMPLATE)),
    "plain": Offer("22" * 32, f"38840:{AUTHOR}:plain", "generate", 1_000, 64, None),
    "encoder": Offer("33" * 32, f"38840:{AUTHOR}:encoder", "embed", 0, 64, None),
}


def _set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class StandIn:
    """Says `says`, a piece at a time, and each costs; then fails with `fails`, or waits if it `hangs`.

    Nothing comes before it `may_say` it.
    """

    says: list[str] = field(default_factory=lambda: ["one ", "two ", "three"])
    reason: str = "stop"
    fails: NodewireError | None = None
    hangs: bool = False
    may_say: asyncio.Event = field(default_factory=_set)
    orders: list[StandInOrder] = field(default_factory=list)
    terms: Terms = field(default_factory=lambda: Terms(max_chunk_msat=100_000, max_total_msat=10_000_000))

    async def offer(self, model: ModelConfig) -> Offer:
        if model.name not in OFFERS:
            raise NotFound(model.manifest or "model", "no relay has it")
        return OFFERS[model.name]

    def order(self, model: ModelConfig, offer: Offer, terms: Terms, announced: Announced) -> StandInOrder:
        self.orders.append(StandInOrder(self, len(self.orders) + 1, terms, announced))
        return self.orders[-1]

    @property
    def names(self) -> tuple[str, ...]:
        return ("pet",)

    async def epoch(self) -> int:
        return 7


@dataclass
class StandInOrder:
    of: StandIn
    number: int
    terms: Terms
    announced: Announced
    cost_msat: int = 0
    cached_tokens: int = 7
    requests: tuple[str, ...] = ()
    moves: tuple[str, ...] = ("moved", "slower")
    prompt: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, prompt: str, params: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        self.prompt, self.params = prompt, dict(params)
        self._request()
        try:
            await self.of.may_say.wait()
            for number, text in enumerate(self.of.says):
                last = number == len(self.of.says) - 1 and self.of.fails is None and not self.of.hangs
                self.cost_msat += PRICE_MSAT
                most = self.params.get("logprobs")
                likely = (
                    () if most is None else tuple(Likely(at, -0.5 - at, said) for at, said in rows(text)[: 1 + most])
                )
                yield Piece(text, (number,), last, self.of.reason if last else "", 10 + number, likely)
            if self.of.fails is not None:
                raise self.of.fails
            if self.of.hangs:
                await asyncio.Event().wait()
        finally:
            self.closed.set()

    async def embed(self, texts: list[str]) -> AsyncGenerator[Vectors, None]:
        self._request()
        self.cost_msat += PRICE_MSAT
        try:
            await self.of.may_say.wait()
            if self.of.fails is not None:
                raise self.of.fails
            if self.of.hangs:
                await asyncio.Event().wait()
        finally:
            self.closed.set()
        yield Vectors(np.array([[len(text), 0.5] for text in texts], np.float32), 3 * len(texts))

    def _request(self) -> None:
        self.requests = (f"{self.number:064x}",)
        self.announced(self.requests[0], 64 * PRICE_MSAT, 1)


def rows(text: str) -> list[tuple[int, str]]:
    """A token's own text and three others', of which one is not whole."""
    return list(enumerate([text, text.upper(), "\ufffd", text.upper()]))


def configured(folder: Path, **changes: Any) -> GatewayConfig:
    models = [{"name": name, "manifest": f"38840:{AUTHOR}:{name}"} for name in OFFERS]
    keys = [{"name": "somebody", "sha256": sha256_of(KEY)}]
    fields = {"customer": folder / "customer.toml", "state": folder, "models": models, "keys": keys, **changes}
    return GatewayConfig.model_validate(fields)


@dataclass
class Open:
    client: aiohttp.ClientSession
    buyer: StandIn
    accounts: Accounts
    desk: Desk
    figures: Figures

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        async with self.client.post(path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def refused(self, path: str, body: Any) -> tuple[int, str | None, str | None]:
        """Status, code and param of an error."""
        status, said = await self.post(path, body)
        assert said["error"].keys() == {"message", "type", "param", "code"}
        return status, said["error"]["code"], said["error"]["param"]


@asynccontextmanager
async def opened(
    folder: Path, buyer: StandIn | None = None, *, most: int = 64, first_s: float = 30.0, **changes: Any
) -> AsyncIterator[Open]:
    config, buyer, figures = configured(folder, **changes), buyer or StandIn(), Figures()
    async with AsyncExitStack() as stack:
        accounts = Accounts(config.accounts)
        stack.callback(accounts.close)
        desk, renderer = Desk(config, buyer, accounts, figures), Renderer()
        stack.push_async_callback(renderer.close)
        scrapes = Scrapes(
            MetricsExposition("gateway", "", [GatewayCollector(figures, lambda: desk.in_flight, lambda: desk.waiting)])
        )
        gateway = Gateway(config, buyer, desk, Keys(config.keys), figures, renderer, {}, scrapes)
        listening = http_server.listening_socket("listen", "127.0.0.1:0")
        app = gateway.application()
        await stack.enter_async_context(
            http_server.serve_app(
                app,
                listening,
                most=most,
                each_s=30.0,
                first_s=first_s,
                refusals=http_server.Refusals(COME_LATER),
                cancels=True,
            )
        )
        stack.push_async_callback(desk.close)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1/"
        client = aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {KEY}"})
        yield Open(await stack.enter_async_context(client), buyer, accounts, desk, figures)
