"""What waits to be sent to one client, bounded: a reader that falls behind is cut off, never waited for.

Two ways in. `post` is for what happens (OK, live events): it never waits, and overflowing it ends the connection.
`put` is for what the client asked for (stored events): it waits for room, and flows as fast as it is read.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING

from nodewire.errors import LinkLost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_TURN_FRAMES = 16
_LEAST_BYTES = 131_072
"""That a connection may have waiting though its address has all that it may."""


async def _any_turn() -> None:
    await asyncio.sleep(0)


class Backlog:
    """Bytes that wait to be sent, by origin: of one `most_bytes`, and a little for each of its connections."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._of: Counter[str] = Counter()

    def add(self, origin: str, nbytes: int) -> None:
        self._of[origin] += nbytes
        if not self._of[origin]:
            del self._of[origin]

    def of(self, origin: str) -> int:
        return self._of.get(origin, 0)

    def is_full(self, origin: str) -> bool:
        return self.of(origin) >= self._most_bytes


class Outbox:
    """Frames for one client, at most `most_bytes` of them, and fewer where `backlog` has enough of its `origin`'s.

    `cut(reason)` is called once, when the reader takes nothing for `stall_s` or falls further behind than that. Every
    few frames wait for `turn`, since to send may wait for nothing, and others want theirs.
    """

    def __init__(
        self,
        send: Callable[[str], Awaitable[None]],
        cut: Callable[[str], None],
        most_bytes: int,
        stall_s: float,
        turn: Callable[[], Awaitable[None]] = _any_turn,
        backlog: Backlog | None = None,
        origin: str = "",
    ) -> None:
        self._turn = turn
        self._backlog, self._origin = backlog or Backlog(most_bytes), origin
        self._send, self._cut, self._most_bytes, self._stall_s = send, cut, most_bytes, stall_s
        self._frames: deque[str] = deque()
        self._bytes = 0
        self._filled, self._room = asyncio.Event(), asyncio.Event()
        self._broken = False

    def post(self, frame: str) -> None:
        """Queue `frame` now; with too much queued already, the reader is cut off instead."""
        if self._broken:
            return
        if self._bytes + len(frame) > (most_bytes := self._most_now):
            self.cut(f"more than {most_bytes} bytes wait to be read")
        else:
            self._append(frame)

    async def put(self, frame: str) -> None:
        """Queue `frame` once less than half of the room is taken.

        Raises:
            LinkLost: the reader has been cut off.

        """
        while self._bytes > self._most_now // 2 and not self._broken:
            self._room.clear()
            await self._room.wait()
        if self._broken:
            raise LinkLost("connection", "the reader was cut off")
        self._append(frame)

    def cut(self, reason: str) -> None:
        """Send nothing more, and say so to the connection's owner."""
        if not self._broken:
            self.close()
            self._cut(reason)

    def close(self) -> None:
        """Send nothing more."""
        self._broken = True
        self._frames.clear()
        self._count(-self._bytes)
        self._room.set()

    async def run(self) -> None:
        """Send what is queued, until the reader is cut off."""
        while not self._broken:
            await self._filled.wait()
            self._filled.clear()
            sent = 0
            while self._frames:
                sent += 1
                if not sent % _TURN_FRAMES:
                    await self._turn()
                if not self._frames:  # cut off meanwhile
                    break
                frame = self._frames.popleft()
                try:
                    async with asyncio.timeout(self._stall_s):
                        await self._send(frame)
                except TimeoutError:
                    self.cut(f"nothing was read for {self._stall_s:g} s")
                if self._broken:
                    break
                self._count(-len(frame))
                self._room.set()

    @property
    def _most_now(self) -> int:
        return min(self._most_bytes, _LEAST_BYTES) if self._backlog.is_full(self._origin) else self._most_bytes

    def _append(self, frame: str) -> None:
        self._frames.append(frame)
        self._count(len(frame))
        self._filled.set()

    def _count(self, nbytes: int) -> None:
        self._bytes += nbytes
        self._backlog.add(self._origin, nbytes)
