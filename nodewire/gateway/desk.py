"""Requests under way: how many at a time, what each may cost, and that each is settled, whoever leaves before."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nodewire.customer.job.retry_policy import MAX_AGAIN
from nodewire.errors import Busy, NodewireError, OverBudget, TimedOut, first_of
from nodewire.gateway.line import Line
from nodewire.pay.bond.settlement import job_share_ppm

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from nodewire.gateway.accounts import Accounts, Reservation
    from nodewire.gateway.config import GatewayConfig, KeyConfig, ModelConfig
    from nodewire.gateway.counters import Figures
    from nodewire.gateway.port import Buyer, Offer, Order

T = TypeVar("T")
_FAREWELL_S = 10.0
_JOBS = 1 + MAX_AGAIN
"""What breaks off is begun anew and costs its prompt again: so many times a job's most is set aside from the beginning,
and once more for each job beyond these, since moves to quicker rings are jobs, too."""
log = logging.getLogger("nodewire.gateway")


class Answer(Generic[T]):
    """What is bought for one request, in a task of its own: who asked may leave, and it is settled all the same."""

    def __init__(
        self,
        order: Order,
        made: AsyncGenerator[T, None],
        limit_s: float,
        settle: Callable[[Answer[T]], None],
        is_requested: Callable[[], bool],
    ) -> None:
        """`is_requested`: whether a job stands on the relays, so that providers compute."""
        self.order = order
        self.failure: NodewireError | None = None
        self._made, self._limit_s = made, limit_s
        self._came: asyncio.Queue[T | None] = asyncio.Queue()  # as long as what was asked for, at most
        self._settle, self._is_requested = settle, is_requested
        self._is_over = False
        self._has_come = self.ends_with_next = False
        self.task = asyncio.create_task(self._run())

    async def items(self) -> AsyncIterator[T]:
        """What comes, as it comes; the end is when it is settled. Raises NodewireError: it failed, after these."""
        while (item := await self._came.get()) is not None:
            yield item
        if self.failure is not None:
            raise self.failure

    def whole(self) -> None:
        """The last item has come: what is left to do is to settle it."""
        self._is_over = True

    def leave(self) -> None:
        """Nobody waits for more: unless it is whole, what is not bought yet is not bought.

        A job that was requested goes on to its first item. Before that providers compute a prompt for which they could
        not be paid, and who leaves too many of those is refused (`pay.accounts.dues.MAX_BROKEN`): all clients share one
        key.
        """
        if not self._is_over:
            self._is_over = True  # a second cancellation would reach what the first one has to pay
            if self._has_come or not self._is_requested():
                self.task.cancel()
            else:
                self.ends_with_next = True

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(self._limit_s), aclosing(self._made) as items:
                async for item in items:
                    self._came.put_nowait(item)
                    self._has_come = True
                    if self.ends_with_next:
                        raise asyncio.CancelledError
        except asyncio.CancelledError:
            self.failure = NodewireError("request", "given up")
        except TimeoutError:
            self.failure = TimedOut("request", f"not answered within {self._limit_s:g} s")
        except Exception as error:
            first = first_of(error)
            if not isinstance(first, NodewireError):
                log.exception("a fault of the gateway's own")
                first = NodewireError("gateway", "a fault of its own; its log says more")
            self.failure = first
        finally:
            try:
                self._settle(self)
            finally:
                self._came.put_nowait(None)


class Desk:
    """Takes requests that have been understood."""

    def __init__(self, config: GatewayConfig, buyer: Buyer, accounts: Accounts, figures: Figures) -> None:
        self._config, self._buyer, self._accounts, self._figures = config, buyer, accounts, figures
        self._line = Line(config.max_requests, config.max_waiting, config.wait_s)
        self._is_closing = False
        self._answers: dict[asyncio.Task[None], Answer[Any]] = {}

    @property
    def in_flight(self) -> int:
        return len(self._answers)

    @property
    def leaving(self) -> int:
        """Requests whose clients have left, and whose first outputs are waited for."""
        return sum(answer.ends_with_next for answer in self._answers.values())

    @property
    def waiting(self) -> int:
        """Requests that wait for others to end."""
        return self._line.waiting

    def admit(self, key: KeyConfig) -> None:
        """Raises TooFast: the key asks too often; Busy: the gateway stops."""
        if self._is_closing:
            raise Busy("gateway", "it stops")
        self._accounts.admit(key, int(time.time() * 1000))

    @asynccontextmanager
    async def answering(
        self,
        key: KeyConfig,
        origin: str,
        model: ModelConfig,
        offer: Offer,
        units: int,
        make: Callable[[Order], AsyncGenerator[T, None]],
    ) -> AsyncIterator[Answer[T]]:
        """Buy what `make` asks of an order; whoever leaves the block before it is whole has the rest not bought.

        The most that it may cost is set aside: by the terms first, and by the prices of its plan once there is one.

        `units`: the most chunks that it can come to, if it takes one job. `origin`: the address that asks, which waits
        for itself alone where there are no keys.

        Raises:
            Busy: too many requests are under way or wait.
            OverBudget: nothing is left of the key's budget.

        """
        owner = f"key {key.name}" if self._config.keys else origin
        await self._line.acquire(owner, key.at_a_time)
        try:
            answer = self._ordered(key, model, offer, units, make)
        except BaseException:
            self._line.give(owner)
            raise
        self._answers[answer.task] = answer

        def ended(task: asyncio.Task[None]) -> None:
            del self._answers[task]
            self._line.give(owner)

        answer.task.add_done_callback(ended)
        try:
            yield answer
        finally:
            answer.leave()

    def _ordered(
        self,
        key: KeyConfig,
        model: ModelConfig,
        offer: Offer,
        units: int,
        make: Callable[[Order], AsyncGenerator[T, None]],
    ) -> Answer[T]:
        """Raises OverBudget."""
        terms = model.terms(self._buyer.terms)
        share_ppm = job_share_ppm(offer.verify_share_ppm, units) if model.verify else 0
        most_msat = min(terms.max_total_msat, _JOBS * units * terms.max_chunk_msat * (1_000_000 + share_ppm) // 10**6)
        reservation = self._accounts.reserve(key, most_msat)
        terms = terms.model_copy(update={"max_total_msat": min(terms.max_total_msat, reservation.msat)})

        dearest_msat, is_requested = 0, False

        def announced(request: str, chunk_msat: int, jobs: int) -> None:
            nonlocal dearest_msat, is_requested
            is_requested = True
            dearest_msat = max(dearest_msat, chunk_msat)
            self._accounts.requested(reservation, request, max(_JOBS, jobs) * units * dearest_msat)

        def settle(answer: Answer[T]) -> None:
            if reservation.msat < most_msat and isinstance(answer.failure, OverBudget):
                answer.failure = OverBudget(
                    "api_key", f"what is left of its budget does not cover it ({answer.failure})"
                )
            self._settled(model, reservation, answer)

        order = self._buyer.order(model, offer, terms, announced)
        return Answer(order, make(order), self._config.request_s, settle, lambda: is_requested)

    async def close(self) -> None:
        """Take no more, let what is under way come to its end for `drain_s`, then stop buying and settle the rest."""
        self._is_closing = True
        self._line.close()
        if self._answers:
            await asyncio.wait(self._answers, timeout=self._config.drain_s)
        for answer in list(self._answers.values()):
            answer.leave()
        if self._answers:
            await asyncio.wait(self._answers, timeout=_FAREWELL_S)

    def _settled(self, model: ModelConfig, reservation: Reservation, answer: Answer[T]) -> None:
        cost_msat = answer.order.cost_msat
        self._accounts.settle(reservation, cost_msat)
        self._figures.settled(model.label, cost_msat, answer.failure)
        self._figures.moved(model.label, answer.order.moves)
