"""One job of a generation, read token by token beside others of the same text."""

from __future__ import annotations

import asyncio
import time
from math import ceil
from typing import TYPE_CHECKING

from nodewire.customer.migration.token_rate import Pace
from nodewire.pay.bond.settlement import share_msat

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodewire.customer.job.purchased_job import PurchasedJob
    from nodewire.customer.tokens.token_chunk import Piece


class Contender:
    """It reads no further than its tokens are taken.

    `positions` and `tokens`: what it may take in and put out at most, by which `most_msat` is what it can cost.
    """

    def __init__(self, bought: PurchasedJob, positions: int, tokens: int, begun: Callable[[Contender], None]) -> None:
        """`begun` is told when its request is out."""
        self.bought, self.pace = bought, Pace()
        self.at = bought.first
        """The number of the token that it gives next."""
        self.is_begun = False
        self.started_s = 0.0
        """From its request to its first token; 0 before that."""
        self.changed = asyncio.Event()
        """Set when there is a token to take, or no more comes."""
        self._positions, self._tokens, self._begun = positions, tokens, begun
        self._piece: Piece | None = None
        self._taken = asyncio.Event()
        self._is_left = False
        self._is_over = False
        """No more is read: it is being settled."""
        self.task = asyncio.create_task(self._read())
        self.task.add_done_callback(lambda _: self.changed.set())

    @property
    def is_ready(self) -> bool:
        return self._piece is not None or self.task.done()

    @property
    def chunk_msat(self) -> int:
        """What a chunk costs, its verification included."""
        plan = self.bought.purchase.plan
        return plan.chunk_msat + share_msat(plan)

    @property
    def most_msat(self) -> int:
        if not self.is_begun:
            return 0
        chunk = self.bought.purchase.manifest.chunk
        return self.chunk_msat * (ceil(self._positions / chunk) + ceil(self._tokens / chunk))

    def pop(self) -> Piece | None:
        """The token that has come; None after the last. Only if it `is_ready`.

        Raises:
            NodewireError: what ended the job.

        """
        if self._piece is None:
            self.task.result()
            return None
        piece, self._piece = self._piece, None
        self.at += len(piece.ids)
        self.changed.clear()
        self._taken.set()
        return piece

    def leave(self, patience_s: float) -> None:
        """Nobody reads it any more. It ends with the chunk that is under way, which is paid, or when time is up."""
        self._is_left = True
        if self._is_whole():
            self.stop()
            return
        asyncio.get_running_loop().call_later(patience_s, self.stop)
        self._piece = None
        self._taken.set()

    def stop(self) -> None:
        """Break it off, if it is not being settled already."""
        if not self._is_over:
            self._is_over = True
            self.task.cancel()

    async def wait_end(self) -> None:
        """Return when what came is settled, after the task's callbacks. What it raised is nobody's business."""
        await asyncio.gather(self.task, return_exceptions=True)
        await asyncio.sleep(0)  # from Python 3.12 on gather does not wait for the callbacks of a task that is over

    def _is_whole(self) -> bool:
        """Whether the newest token was the last of its chunk."""
        outputs = len(self.bought.purchase.timing.outputs)
        return outputs == 0 or (outputs - 1) % self.bought.purchase.manifest.chunk == 0

    async def _read(self) -> None:
        async with self.bought.purchase as purchase:
            self.is_begun = True
            self._begun(self)
            asked_s = requested_s = time.monotonic()
            async for piece in purchase.outputs():
                now_s = time.monotonic()
                self.started_s = self.started_s or now_s - requested_s
                self.pace.record(now_s, now_s - asked_s)
                if self._is_left:
                    if self._is_whole():
                        break
                    continue
                self._piece = piece
                self._taken.clear()
                self.changed.set()
                await self._taken.wait()
                asked_s = time.monotonic()
            self._is_over = True
