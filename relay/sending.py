"""What waits to be sent to one client, bounded: a reader that falls behind is cut off, never waited for.

Two ways in. `post` is for what happens (OK, live events): it never waits, and overflowing it ends the connection.
`put` is for what the client asked for (stored events): it waits for room, and flows as fast as it is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from nodewire.errors import LinkLost

_TURN_FRAMES = 16


async def _any_turn() -> None:
    await asyncio.sleep(0)


class Outbox:
    """Frames for one client, at most `most_bytes` of them.

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
    ) -> None:
        self._turn = turn
        self._send, self._cut, self._most_bytes, self._stall_s = send, cut, most_bytes, stall_s
        self._frames: deque[str] = deque()
        self._bytes = 0
        self._filled, self._room = asyncio.Event(), asyncio.Event()
        self._broken = False

    def post(self, frame: str) -> None:
        """Queue `frame` now; with too much queued already, the reader is cut off instead."""
        if self._broken:
            return
        if self._bytes + len(frame) > self._most_bytes:
            self.cut(f"more than {self._most_bytes} bytes wait to be read")
        else:
            self._append(frame)

    async def put(self, frame: str) -> None:
        """Queue `frame` once less than half of the room is taken.

        Raises:
            LinkLost: the reader has been cut off.
        """
        while self._bytes > self._most_bytes // 2 and not self._broken:
            self._room.clear()
            await self._room.wait()
        if self._broken:
            raise LinkLost("connection", "the reader was cut off")
        self._append(frame)

    def cut(self, reason: str) -> None:
        """Send nothing more, and say so to the connection's owner."""
        if not self._broken:
            self._broken = True
            self._frames.clear()
            self._room.set()
            self._cut(reason)

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
                self._bytes -= len(frame)
                if self._bytes <= self._most_bytes // 2:
                    self._room.set()

    def _append(self, frame: str) -> None:
        self._frames.append(frame)
        self._bytes += len(frame)
        self._filled.set()
