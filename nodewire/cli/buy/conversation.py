"""A conversation with a model of the market: history, answers that can be broken off, who made them, what they cost."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from nodewire.chat.folder import template_file
from nodewire.chat.renderer import Renderer
from nodewire.cli.buy.job_view import ObservableCustomer
from nodewire.config import CustomerConfig
from nodewire.customer.api import CallListener
from nodewire.customer.job.job import Purchase
from nodewire.customer.job.summary import spent
from nodewire.customer.models.names import ModelAt
from nodewire.customer.tokens.token_chunk import Piece
from nodewire.errors import BadInput, OverBudget
from nodewire.plan.assign import link_us
from nodewire.protocol.market.token_price import per_million_msat
from nodewire.protocol.model.chat_template import ChatTemplate
from nodewire.swarm.member import SwarmCustomer

T = TypeVar("T")
_TOLD_S = 0.25
"""So often an answer that is under way is told with its speed and cost."""


@dataclass(slots=True)
class Answer:
    """One answer, as far as it has come. `first_s` is from the question to the first token."""

    text: str = ""
    prompt_tokens: int = 0
    tokens: int = 0
    first_s: float = 0.0
    seconds: float = 0.0
    """From the first token to the newest."""
    cost_msat: int = 0
    requests: list[str] = field(default_factory=list)
    moves: list[dict[str, Any]] = field(default_factory=list)
    """To other rings."""
    reason: str = ""
    """Why it ended: eos, stop, length, stopped (by who asked) or budget."""

    @property
    def tokens_per_s(self) -> float:
        return (self.tokens - 1) / self.seconds if self.tokens > 1 and self.seconds > 0 else 0.0

    def document(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "reason": self.reason,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.tokens,
            "first_token_ms": round(self.first_s * 1000, 1),
            "tokens_per_s": round(self.tokens_per_s, 1),
            "cost_msat": self.cost_msat,
            "requests": self.requests,
            "moves": self.moves,
        }


Told = Callable[[str, Answer], None]
"""Told each new text, and the answer with it."""


@dataclass(slots=True, kw_only=True)
class Talk(ABC):
    """With the model called `address`; `params` are a generation's."""

    renderer: Renderer
    address: str
    template: ChatTemplate
    params: Mapping[str, Any]
    system: str = ""
    history: list[dict[str, str]] = field(default_factory=list)
    cost_msat: int = 0
    is_paid: bool = False

    @property
    def messages(self) -> list[dict[str, str]]:
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.history]

    async def answer(self, text: str, told: Told) -> Answer:
        """Ask, and have the answer told as it comes. Cancelling it ends it there: what came is paid, and stays.

        Raises:
            NodewireError: nothing came; the question is not part of the history then. (What breaks off later, too,
                but for a budget: then what came is an answer.)

        """
        question = {"role": "user", "content": text}
        prompt = await self.renderer.render(self.template, [*self.messages, question])
        made = Answer()
        try:
            await self._ask(prompt, made, told)
        except asyncio.CancelledError:
            made.reason = "stopped"
        except OverBudget:
            if not made.tokens:
                raise
            made.reason = "budget"
        finally:
            self.cost_msat += made.cost_msat
        if made.tokens:
            self.history += [question, {"role": "assistant", "content": made.text}]
        return made

    @abstractmethod
    async def _ask(self, prompt: str, made: Answer, told: Told) -> None:
        """Have `made` grow; whatever ends that, it says at last what it cost."""

    @abstractmethod
    async def ring(self) -> list[dict[str, Any]]:
        """The providers of the last answer, by task."""


async def follow(pieces: AsyncIterator[Piece], made: Answer, told: Told, cost_msat: Callable[[], int]) -> None:
    """Have `made` grow by `pieces`."""
    began_s = time.monotonic()
    first_s = looked_s = 0.0
    async for piece in pieces:
        now_s = time.monotonic()
        if not made.tokens:
            made.first_s, made.prompt_tokens, first_s = now_s - began_s, piece.position, now_s
        made.tokens += len(piece.ids)
        made.seconds = now_s - first_s
        made.text += piece.text
        made.reason = piece.reason
        if now_s - looked_s > _TOLD_S:
            looked_s, made.cost_msat = now_s, cost_msat()
        told(piece.text, made)


def template_for(own: Path | None, found: ChatTemplate | None) -> ChatTemplate:
    """The one in the file `own`, with the special tokens of the model's; else the model's. Raises BadInput: neither."""
    if own is not None:
        said = template_file(own)
        return said.model_copy(update={"tokens": found.tokens}) if found is not None else said
    if found is None:
        raise BadInput("--template", "the model has none: name a file with one, or use `nodewire generate`")
    return found


@dataclass(slots=True, kw_only=True)
class Conversation(Talk):
    """With the market's or a swarm's model at `address`; `budget_msat` is what all of it may cost."""

    customer: ObservableCustomer
    digest: str | None = None
    """The manifest's digest, if a certain version is meant."""
    budget_msat: int | None = None
    last: Purchase | None = None

    @classmethod
    async def open(
        cls,
        stack: AsyncExitStack,
        config: CustomerConfig | SwarmCustomer,
        model: str,
        template: Path | None,
        params: Mapping[str, Any],
        *,
        asks: bool,
        **fields: Any,
    ) -> Self:
        """`template` is a file, if there is one; `asks`: a user at a terminal may be asked which model is meant.

        Raises BadInput: the model has no template either; or as `Customer.find_model`.
        """
        customer = await stack.enter_async_context(ObservableCustomer(config, show=False, asks=asks))
        renderer = Renderer()
        stack.push_async_callback(renderer.close)
        found = await customer.find_model(model)
        known = template_for(template, await customer.chat_template(found))
        return cls(
            customer=customer,
            renderer=renderer,
            address=found.address,
            digest=found.digest,
            template=known,
            params=params,
            is_paid=isinstance(config, CustomerConfig),
            **fields,
        )

    async def _ask(self, prompt: str, made: Answer, told: Told) -> None:
        purchases = list[Purchase]()
        terms = self.customer.terms
        if self.budget_msat is not None:
            left_msat = max(0, self.budget_msat - self.cost_msat)
            terms = terms.model_copy(update={"max_total_msat": min(terms.max_total_msat, left_msat)})
        params = {**self.params, "special_tokens": False}
        try:
            pieces = self.customer.generate(
                ModelAt(self.address, self.digest),
                prompt,
                terms=terms,
                listener=CallListener(purchases.append, moved=lambda move: made.moves.append(asdict(move))),
                **params,
            )
            async with aclosing(pieces):
                await follow(pieces, made, told, lambda: _cost_msat(purchases))
        finally:
            begun = [one for one in purchases if one.is_underway]
            lost = {move["request"] for move in made.moves if move["outcome"] != "moved"}
            self.last = next((one for one in reversed(begun) if one.request.id not in lost), self.last)
            made.cost_msat, made.requests = _cost_msat(begun), [one.request.id for one in begun]

    async def ring(self) -> list[dict[str, Any]]:
        """The providers of the last answer, by task, with prices and the time to the next one.

        Distances are by coordinates; from this machine they are as its link was measured. Times are one way.
        """
        if self.last is None:
            return []
        plan, health = self.last.plan, self.customer.session.node.survey.health
        nodes = await self.customer.session.public_record.nodes(plan)
        who = [task.provider for task in plan.tasks]
        rows = []
        for n, task in enumerate(plan.tasks):
            here, there = (nodes.get(w) for w in (who[n], who[(n + 1) % len(who)]))
            trips = health[who[n]].rtt if who[n] in health else None
            rows.append(
                {
                    "task": task.task,
                    "provider": who[n],
                    "name": self.customer.names.get(who[n], ""),
                    "price_msat": task.price_msat,
                    "msat_per_million": int(per_million_msat(task.price_msat, self.last.manifest.chunk)),
                    "to_next_ms": round(link_us(here, there) / 1000, 2) if here and there else None,
                    "from_here_ms": round(trips.least_us / 2000, 2) if trips is not None else None,
                }
            )
        return rows


class LoopThread:
    """An event loop in a thread beside: the market goes on while a terminal waits for its user."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="market", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], *, interrupted: Callable[[], None] = lambda: None) -> T:
        """What `work` returns or raises. Ctrl-C cancels it, once, and then it is waited for: it may have to pay.

        Raises KeyboardInterrupt: that was its end.
        """
        done: Future[T] = Future()
        task: asyncio.Task[T] | None = None

        def begin() -> asyncio.Task[T]:
            nonlocal task
            if task is None:  # else an interrupt came between
                task = self._loop.create_task(work)
                task.add_done_callback(ended)
            return task

        def ended(of: asyncio.Task[T]) -> None:
            error = asyncio.CancelledError() if of.cancelled() else of.exception()
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(of.result())

        cancelled = False
        while True:
            try:
                self._loop.call_soon_threadsafe(begin)
                return done.result()
            except asyncio.CancelledError:
                raise KeyboardInterrupt from None
            except KeyboardInterrupt:
                if not cancelled:
                    cancelled = True
                    self._loop.call_soon_threadsafe(lambda: begin().cancel())
                    interrupted()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _cost_msat(purchases: list[Purchase]) -> int:
    return sum(spent(one.plan, one.booked, one.lenders).total_msat for one in purchases if one.is_underway)
