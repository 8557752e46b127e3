"""The daemon's end of the channel to a worker: bytes in, messages out, as soon as they are whole."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from nodewire.errors import NodewireError
from nodewire.worker.ipc import message

if TYPE_CHECKING:
    from collections.abc import Callable


class Channel(asyncio.Protocol):
    """What came before somebody listens is kept for who does. `ended` is set when the worker has hung up."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._early: deque[dict[str, Any]] = deque()
        self._heard: Callable[[dict[str, Any]], None] = self._early.append
        self._arrived = asyncio.Event()
        self.broken: Exception | None = None
        """What a message was not, or what who listens raised: then nothing more is read."""

    def listen(self, heard: Callable[[dict[str, Any]], None]) -> None:
        """Have every message given to `heard`, at once. What that raises ends the channel."""
        self._heard = heard
        while self._early:
            heard(self._early.popleft())

    async def first(self) -> dict[str, Any] | None:
        """The next message, before anybody listens; None once the worker has hung up."""
        while not self._early and not self.ended.is_set():
            self._arrived.clear()
            await self._arrived.wait()
        if self.broken is not None:
            raise self.broken
        return self._early.popleft() if self._early else None

    def write(self, data: bytes) -> None:
        """Send; without effect once the worker has hung up."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        at, begin = 0, message.PREFIX.size
        try:
            while len(data) >= at + begin and self.broken is None:
                end = at + begin + message.body_length(data[at : at + begin])
                if len(data) < end:
                    break
                body, at = data[at + begin : end], end
                self._heard(message.unpack(body))
            self._buffer = data[at:]
        except (NodewireError, KeyError, TypeError, ValueError, AttributeError) as error:
            # only a worker that has been taken over speaks so
            self.broken = error
            self.close()
        self._arrived.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set()
        self._arrived.set()
