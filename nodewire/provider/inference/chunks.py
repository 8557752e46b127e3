"""The chunks of a job at this provider: which may begin, what they count as, which are closed, when one is complete.

A generation's chunk is complete when its driver has closed it and the record lacks no row of it; a call at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import takewhile

from nodewire.core.job_task_group import JobTaskGroup
from nodewire.errors import BadFrame, OverBudget, PaymentRequired
from nodewire.protocol.job.chunk import AHEAD
from nodewire.protocol.job.chunk_close import Close
from nodewire.protocol.job.frame_refusal import driven
from nodewire.provider.inference.chunk_biller import ChunkBiller
from nodewire.provider.inference.credit import Credit
from nodewire.provider.inference.job_context import JobContext
from nodewire.provider.inference.output_hasher import OutputHasher
from nodewire.wire.job.plain_record import Record

log = logging.getLogger("nodewire.provider")

_Word = tuple[int, bool, Close | None]
"""Of a chunk that is over: units, whether it is the last, and the driver's close, where there is one."""


class Chunks:
    def __init__(
        self,
        context: JobContext,
        record: Record | None,
        credit: Credit,
        *,
        begin: Callable[[], None],
        hashing: OutputHasher,
        settling: ChunkBiller,
        task_group: JobTaskGroup,
    ) -> None:
        """`record`: a generation's. `begin`: told before the first chunk is computed; it raises Busy where not."""
        self.units: dict[int, int] = {}
        """By chunk, what this node's inputs of it count as."""
        self.broken: BadFrame | None = None
        """What the driver did wrong."""
        self._context = context
        self._record = record
        self._credit = credit
        self._begin = begin
        self._hashing = hashing
        self._settling = settling
        self._task_group = task_group
        self._all_units = 0
        self._closed: set[int] = set()
        self._closes = asyncio.Event()
        """Set with every chunk that is closed."""
        self._is_over = False
        """Whether the last one is."""
        self._closing: dict[int, _Word] = {}
        """By chunk that the driver has closed, and of which rows may be lacking here."""
        self._turn = asyncio.Lock()
        """Held by the chunk that is closed."""
        self._finishing: list[asyncio.Task[None]] = []

    def first_open(self) -> int:
        """The first chunk that has not been closed."""
        return max(self._closed, default=-1) + 1

    async def admit(self, chunk: int, units: int = 1) -> None:
        """An input of `units` begins; waits while there is no credit for it, or it may be a guess beyond the budget.

        Raises:
            BadFrame: the call is over; or the driver has not closed a chunk before, so that nothing is asked for.
            PaymentRequired: the customer has not paid one before.
            OverBudget: it would cost more than the plan allows.
            Busy: the first one may not begin.

        """
        if chunk == 0:
            self._begin()
        if self._record is None and chunk in self._closed:
            raise BadFrame("chunk", f"{chunk} has been closed")
        plan = self._context.request.plan
        while (self._all_units + units - self.units.get(chunk, 0)) * plan.chunk_msat > plan.terms.max_total_msat:
            is_guess = chunk - 1 not in self._closed or self._is_over  # which may never come true
            if self._record is not None and is_guess:
                self._closes.clear()
                await self._closes.wait()
                continue
            raise OverBudget(
                "max_total_msat", f"the job's budget is used up: what follows chunk number {chunk - 1} would cost more"
            )
        try:
            await self._credit.admit(chunk)
        except PaymentRequired as error:
            before, context = chunk - AHEAD, self._context
            if self._credit.is_owed or before in self._closed or not context.generates or context.drives:
                raise
            # The customer was asked for nothing: it is no debtor, and others can do better.
            raise BadFrame("chunk", f"{chunk} comes, and the driver has not closed {before}") from error
        self._all_units += max(0, units - self.units.get(chunk, 0))
        self.units[chunk] = max(units, self.units.get(chunk, 0))

    async def on_close(self, close: Close) -> None:
        """The driver says that a chunk is over.

        Raises BadFrame: it cannot be true.
        """
        if close.positions is not None and not (
            close.end and close.chunk and 0 < close.positions <= self._context.manifest.chunk
        ):
            raise BadFrame(
                "positions", f"{close.positions} of chunk {close.chunk}, which is not the last, or not so long"
            )
        await self.finish(close.chunk, (close.units, close.end, close), close.positions)

    async def finish(self, chunk: int, word: _Word, positions: int | None = None) -> None:
        """A chunk is over: when this node's part of it is complete, it is committed to and asked for."""
        if chunk in self._closed or chunk in self._closing:
            return
        if self._record is None:
            await self._finished(chunk, word)
            return
        self._record.check(chunk)
        self._closing[chunk] = word
        try:
            self._record.close(chunk, positions)
        except BadFrame as error:  # the driver's word contradicts what it sent
            self.broken = error
            self._task_group.ended.set()

    def complete(self, chunk: int) -> None:
        """No row of a chunk that the driver has closed is lacking, by the record.

        Raises BadFrame, naming an edge of the driver's: it counts what was computed here as something else.
        """
        word, context = self._closing.pop(chunk), self._context
        if not context.drives and word[0] != self.units.get(chunk, word[0]):
            raise BadFrame(
                driven(context.manifest), f"units: {word[0]} of chunk {chunk}, which had {self.units[chunk]}"
            )
        self._closed.add(chunk)  # at once: its close may come twice
        self._finishing.append(self._task_group.spawn(self._finished(chunk, word)))

    async def _finished(self, chunk: int, word: _Word) -> None:
        units, end, close = word
        self._closed.add(chunk)
        self._is_over = self._is_over or end
        self._closes.set()
        async with self._turn:  # the chunks in their order
            await self._hashing.all()
            await self._settling.bill(chunk, units, self._hashing.pop(chunk), end=end, close=close)

    async def claim_unclosed(self) -> None:
        """The job failed: chunks whose successor had begun were complete, though the driver has not said so."""
        if not self._context.generates or self._context.drives:
            return
        assert self._record is not None
        left = sorted(set(self.units) - self._closed)
        for chunk in takewhile(self._record.is_past, left):
            await self.finish(chunk, (self.units[chunk], False, None))
        await asyncio.gather(*self._finishing)
