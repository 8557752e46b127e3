"""The jobs of one generation that run at once: one leads, another has the same text so far and may overtake it.

A token is taken from whichever has it first. While the second repeats what the first has said already it is compared,
and where it says anything else it is out: so the session goes on with the same tokens, whoever makes them. Nobody's
word for being quick is believed: who catches up leads from there on, who does not is out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nodewire.customer.migration.contender import Contender
from nodewire.errors import NodewireError

if TYPE_CHECKING:
    from nodewire.customer.tokens.token_chunk import Piece

Outcome = Literal["moved", "slower", "differs", "failed", "ended"]
"""Of a second job: it overtook the first; it did not overtake it, said something else, or failed itself; the first was
over before that, at its end or by a failure."""
LEAVING_S = 10.0
"""How long a job that is left may take to complete the chunk that is under way."""
_LEEWAY = 1.2
_MORE = 32
"""Tokens beyond twice what was expected, in which a second job overtakes the first or is out."""

Decided = Callable[[Contender, Outcome], None]


@dataclass(slots=True)
class _Second:
    contender: Contender
    most: int
    """Tokens that it may take to overtake the first."""


class Race:
    """The jobs of one text: the one that leads, and at most one beside it.

    `begin` sets `lead`. `decided` is told what became of a second one, once each. When it is told `moved`, that leads.
    """

    def __init__(self, decided: Decided, ended: Callable[[Contender], None]) -> None:
        """`ended` is told of every job that was left, when it is over."""
        self._decided, self._ended = decided, ended
        self._second: _Second | None = None
        self._lead: Contender | None = None
        self._left: set[Contender] = set()
        self.is_whole = False
        """Whether the last token has been given: what still runs is being settled."""

    @property
    def lead(self) -> Contender:
        assert self._lead is not None
        return self._lead

    @property
    def has_second(self) -> bool:
        return self._second is not None

    @property
    def abandoned(self) -> Sequence[Contender]:
        """Jobs that are not read any more, and not over."""
        return tuple(self._left)

    def begin(self, contender: Contender) -> None:
        """The job that leads, where none does any more."""
        assert self._second is None and not self.is_whole
        self._lead = contender

    def second(self, contender: Contender, overtaking: int) -> None:
        """Another job of the same text, which is expected to have overtaken the first after so many tokens."""
        assert self._second is None and not self.is_whole
        self._second = _Second(contender, 2 * overtaking + _MORE)

    async def next(self, ids: Sequence[int]) -> Piece | None:
        """The token after `ids`; None if there is none: then the job that leads is settled.

        Raises:
            NodewireError: what ended the job that leads. One beside it ends, too: whoever goes on begins anew.

        """
        piece = await self._next(ids)
        self.is_whole = piece is None or piece.end
        return piece

    async def _next(self, ids: Sequence[int]) -> Piece | None:
        while True:
            if self._second is not None and self._second.contender.is_ready:
                if (piece := self._of_second(self._second, ids)) is not None:
                    return piece
            elif self.lead.is_ready:
                try:
                    piece = self.lead.pop()
                except NodewireError:
                    if self._second is not None:
                        self._out(self._second.contender, "ended")
                    raise
                if self._second is not None and (piece is None or piece.end):
                    self._out(self._second.contender, "ended")
                return piece
            else:
                await self._news()

    async def clear(self) -> None:
        """Return when the jobs that were left are settled."""
        left = [*self._left]
        for contender in left:
            contender.stop()
        await asyncio.gather(*(contender.wait_end() for contender in left))

    async def end(self) -> None:
        """Nothing more is wanted; returns when all jobs are settled."""
        if self._second is not None:
            self._out(self._second.contender, "ended")
        if self._lead is not None:
            self._lead.task.cancel()
            await self._lead.wait_end()
        await self.clear()

    def _of_second(self, second: _Second, ids: Sequence[int]) -> Piece | None:
        """Take a token of the second job; it is the one to go on with if it is new."""
        contender = second.contender
        try:
            piece = contender.pop()
        except NodewireError:
            piece = None
        if piece is None:
            self._out(contender, "failed")
        elif contender.at > len(ids):
            self._lead, before, self._second = contender, self.lead, None
            self._leave(before, LEAVING_S)
            self._decided(contender, "moved")
            return piece
        elif not _same(contender, piece, ids):
            self._out(contender, "differs")
        elif self._is_slower(second):
            self._out(contender, "slower")
        return None

    def _is_slower(self, second: _Second) -> bool:
        here_s, there_s = self.lead.pace.step_s, second.contender.pace.step_s
        slower = here_s is not None and there_s is not None and here_s < _LEEWAY * there_s
        return slower or second.contender.at - second.contender.bought.first > second.most

    def _out(self, contender: Contender, outcome: Outcome) -> None:
        self._second = None
        self._leave(contender, 0)
        self._decided(contender, outcome)

    def _leave(self, contender: Contender, patience_s: float) -> None:
        self._left.add(contender)
        contender.task.add_done_callback(lambda _: self._over(contender))
        if patience_s:
            contender.leave(patience_s)
        else:
            contender.stop()

    def _over(self, contender: Contender) -> None:
        self._left.discard(contender)
        if not contender.task.cancelled():
            contender.task.exception()  # which nobody waits for
        self._ended(contender)

    async def _news(self) -> None:
        if self._second is None:
            await self.lead.changed.wait()
            return
        waiting = [asyncio.ensure_future(contender.changed.wait()) for contender in (self.lead, self._second.contender)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()


def _same(contender: Contender, piece: Piece, ids: Sequence[int]) -> bool:
    first = contender.at - len(piece.ids)
    return tuple(ids[first : contender.at]) == piece.ids
