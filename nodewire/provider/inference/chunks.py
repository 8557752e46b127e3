"""The chunks of a job at this provider: which may begin, what they count as, which are closed.

A generation's chunk is signed when the driver's close is here, and closed when the tape lacks no row of it, too. A call
is closed at once.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import takewhile
from typing import TYPE_CHECKING

from nodewire.errors import BadFrame, OverBudget, PaymentRequired
from nodewire.protocol.job.chunk import AHEAD
from nodewire.protocol.job.chunk_close import Close
from nodewire.protocol.job.frame_refusal import driven

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodewire.core.job_task_group import JobTaskGroup
    from nodewire.provider.inference.chunk_biller import ChunkBiller
    from nodewire.provider.inference.credit import Credit
    from nodewire.provider.inference.job_context import JobContext
    from nodewire.provider.inference.output_hasher import OutputHasher
    from nodewire.wire.job.generation_tape import GenerationTape

log = logging.getLogger("nodewire.provider")

_Word = tuple[int, bool, Close | None]
"""Of a chunk that is over: units, whether it is the last, and the driver's close, where there is one."""


class Chunks:
    def __init__(
        self,
        context: JobContext,
        tape: GenerationTape | None,
        credit: Credit,
        *,
        begin: Callable[[], None],
        hashing: OutputHasher,
        settling: ChunkBiller,
        task_group: JobTaskGroup,
    ) -> None:
        """`tape`: a generation's. `begin`: told before the first chunk is computed; it raises Busy where not."""
        self.units: dict[int, int] = {}
        """By chunk, what this node's inputs of it count as."""
        self.broken: BadFrame | None = None
        """What the driver did wrong."""
        self._context = context
        self._tape = tape
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
        self._signed: dict[int, _Word] = {}
        """By chunk that is signed and not closed."""
        self._turn = asyncio.Lock()
        """Held by the chunk that is closed."""
        self._billing: list[asyncio.Task[None]] = []

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
        if self._tape is None and chunk in self._closed:
            raise BadFrame("chunk", f"{chunk} has been closed")
        plan = self._context.request.plan
        while (self._all_units + units - self.units.get(chunk, 0)) * plan.chunk_msat > plan.terms.max_total_msat:
            # A prompt is none; what comes before its predecessor's close, or after the end, may never come true.
            is_guess = chunk > 0 and (chunk - 1 not in self._closed or self._is_over)
            if self._tape is not None and is_guess:
                self._closes.clear()
                await self._closes.wait()
                continue
            raise OverBudget(
                "max_total_msat",
                f"the job's budget is used up: what follows chunk number {chunk - 1} would cost more"
                if chunk
                else f"the prompt alone takes {units} units of {plan.chunk_msat} msat, and would cost more",
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
        await self.on_signed(close.chunk, (close.units, close.end, close), close.positions)

    async def on_signed(self, chunk: int, word: _Word, positions: int | None = None) -> None:
        """A chunk is over by somebody's word. When it is closed here, it is committed to and asked for."""
        if chunk in self._closed or chunk in self._signed:
            return
        if self._tape is None:
            await self._bill(chunk, word)
            return
        self._tape.check(chunk)
        self._signed[chunk] = word
        try:
            self._tape.on_signed(chunk, positions)
        except BadFrame as error:  # the driver's word contradicts what it sent
            self.broken = error
            self._task_group.ended.set()

    def on_rows_whole(self, chunk: int) -> None:
        """No row of a signed chunk is lacking, by the tape: it is closed.

        Raises BadFrame, naming an edge of the driver's: it counts what was computed here as something else.
        """
        word, context = self._signed.pop(chunk), self._context
        if not context.drives and word[0] != self.units.get(chunk, word[0]):
            raise BadFrame(
                driven(context.manifest), f"units: {word[0]} of chunk {chunk}, which had {self.units[chunk]}"
            )
        self._closed.add(chunk)  # at once: its close may come twice
        self._billing.append(self._task_group.spawn(self._bill(chunk, word)))

    async def _bill(self, chunk: int, word: _Word) -> None:
        units, end, close = word
        self._closed.add(chunk)
        self._is_over = self._is_over or end
        self._closes.set()
        async with self._turn:  # the chunks in their order
            await self._hashing.all()
            await self._settling.bill(chunk, units, self._hashing.pop(chunk), end=end, close=close)

    async def claim_unclosed(self) -> None:
        """The job failed: chunks that are whole here, and that the driver must have accepted, are claimed.

        They are claimed by this node's own word, though the driver signed no close (`GenerationTape.is_past`).
        """
        if not self._context.generates or self._context.drives:
            return
        assert self._tape is not None
        left = sorted(set(self.units) - self._closed)
        for chunk in takewhile(self._tape.is_past, left):
            await self.on_signed(chunk, (self.units[chunk], False, None))
        await asyncio.gather(*self._billing)
