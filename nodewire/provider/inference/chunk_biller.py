"""A chunk that is closed: committed to, and asked for. One after the other, beside the job's work.

In a job that may be judged, that waits until its inputs' producers have signed what they sent
(`provider.inference.statements`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from nodewire.errors import BadFrame, NodewireError, TimedOut
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.dues import Due
from nodewire.protocol.committee.commitment import ChunkRoot
from nodewire.protocol.job import feedback
from nodewire.protocol.job.chunk import Leaf, claim, opening
from nodewire.protocol.job.frame_refusal import driven
from nodewire.protocol.market.cached_price import due_msat

if TYPE_CHECKING:
    from nodewire.core.job_task_group import JobTaskGroup
    from nodewire.nostr.event import Event
    from nodewire.pay.accounts.ledger import Ledger
    from nodewire.protocol.job.chunk_close import Close
    from nodewire.provider.inference.credit import Credit
    from nodewire.provider.inference.job_context import JobContext
    from nodewire.provider.inference.job_publisher import JobPublisher
    from nodewire.provider.inference.statement_sender import StatementSender
    from nodewire.provider.tasks.prefix_cache import FoundPrompts

log = logging.getLogger("nodewire.provider")

Commit = Callable[[Sequence[ChunkRoot]], Awaitable[None]]
"""Takes the roots of a chunk; they are on disk when it returns. Only then their payment is asked for."""


class ChunkBiller:
    def __init__(
        self,
        context: JobContext,
        ledger: Ledger,
        credit: Credit,
        *,
        commit: Commit,
        telling: JobPublisher,
        stating: StatementSender | None,
        prompts: FoundPrompts,
        task_group: JobTaskGroup,
    ) -> None:
        """`prompts` knows what of a prompt was found, which costs less."""
        self.roots: list[ChunkRoot] = []
        """That were committed to."""
        self._context = context
        self._ledger = ledger
        self._credit = credit
        self._commit = commit
        self._telling = telling
        self._stating = stating
        self._prompts = prompts
        self._task_group = task_group
        self._unsettled: dict[int, tuple[int, dict[str, list[Leaf]], Close | None]] = {}
        """By chunk that is over and not asked for: its units, what its tasks put out, and the driver's close."""
        self._turn = asyncio.Lock()
        """Held by the chunk that is settled."""
        self._claims: list[asyncio.Task[None]] = []
        """The publications of claims, under way or done."""

    async def bill(
        self, chunk: int, units: int, made: dict[str, list[Leaf]], *, end: bool, close: Close | None
    ) -> None:
        """Settle a chunk of which this node `made` this.

        It is not waited for what others must sign first: what is waited for comes by those that called this. `close`:
        the driver's, of a chunk that it has closed.
        """
        self._unsettled[chunk] = units, made, close
        if self._stating is None:
            await self._settle(chunk, end)
            return
        self._stating.chunk(chunk)
        self._task_group.spawn(self._settle(chunk, end))

    async def stop(self, error: NodewireError) -> None:
        """The job failed: what cannot be committed to without its inputs' producers' word is not asked for either.

        What is asked for has been told when this returns, as far as relays take it.
        """
        if self._stating is None:
            await asyncio.gather(*self._claims)
            return
        self._task_group.fault = self._task_group.fault or error
        self._stating.statements.stop(error)
        async with self._turn:
            left, self._unsettled = self._unsettled, {}
        if chunks := sorted(chunk for chunk, (_, made, _) in left.items() if made):
            job = self._context.request.id
            log.info("job %s: not asked for: chunks %s, whose inputs nobody signed", job[:8], chunks)
        await asyncio.gather(*self._claims)

    async def _settle(self, chunk: int, end: bool) -> None:
        """Commit to a chunk, and ask for its payment, when what it was computed from is signed."""
        async with self._turn:
            if self._task_group.fault is not None:
                return
            units, made, close = self._unsettled[chunk]
            if made:
                if self._stating is not None:  # what its inputs are signed by, it is judged by
                    await self._stating.statements.complete(chunk, self._stating.tell)
                roots = [self._root(leaves, task, chunk) for task, leaves in made.items()]
                try:
                    await self._commit(roots)
                except TimedOut as error:  # whoever closes it so late would have this node's bond slashed
                    if close is None or self._context.drives:
                        raise
                    raise BadFrame(
                        driven(self._context.manifest), f"chunk {chunk} is closed late: {error.reason}"
                    ) from error
                self.roots += roots
                cached = self._prompts.cached(made, units) if self._context.generates and chunk == 0 else 0
                await self._ask(chunk, units, cached, claim(roots), close)
            del self._unsettled[chunk]
            if end:
                self._task_group.ended.set()

    def _root(self, leaves: Sequence[Leaf], task: str, chunk: int) -> ChunkRoot:
        context, job = self._context, self._context.request.id
        made = opening(context.keys, context.manifest, leaves, request=job, task=task, chunk=chunk, attempt=0)
        return ChunkRoot(request=job, task=task, chunk=chunk, attempt=0, root=made.root())

    async def _ask(self, chunk: int, units: int, cached: int, root: str, close: Close | None) -> None:
        context, request = self._context, self._context.request
        amount_msat = due_msat(request.plan.price_msat(context.me), units, cached, context.cached_ppm)
        if not amount_msat:
            await self._credit.paid(chunk)
            return
        key = Key(request.id, context.me, chunk, 0)
        due_by_s = int(time.time() + context.patience_s)
        said = self._telling.claim(feedback.Due(chunk, 0, units, amount_msat, root, cached, close))
        # What the driver has signed for is owed; of all else the customer need not have got anything.
        owed = self._ledger.owe(
            Due(key, request.customer, amount_msat, due_by_s),
            under_way=close is None,
            claim=said.to_json(),
        )
        await self._credit.due(chunk)
        if owed.state == "settled" or self._ledger.is_covered(request.customer):
            await self._credit.paid(chunk)
        self._claims.append(self._task_group.spawn(self._tell(said, key)))

    async def _tell(self, said: Event, key: Key) -> None:
        """Publish a claim. Nobody waits for relays, and one that they do not take is told again (`claim_retry`)."""
        try:
            await self._ledger.flushed()
            await self._telling.publish(said)
        except (NodewireError, OSError) as error:
            log.warning("job %s: the claim of chunk %d: %s", key.job[:8], key.chunk, error)
        else:
            self._ledger.mark_claimed(key)
