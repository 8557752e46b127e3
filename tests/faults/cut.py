"""A way between two nodes that can be cut: a TCP address that leads to another, and for a while to nowhere.

While it is cut its connections are reset, and nobody answers those that are opened: the kernel drops their first
packets as the queue is full, so that they are repeated, as on a path that carries nothing.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

_CHUNK_BYTES = 65_536


class Way:
    """Leads from `address` to `target` ("host:port"), which may be set later."""

    def __init__(self, target: str = "") -> None:
        self.target = target
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._socket.setblocking(False)
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._full: list[socket.socket] = []
        self._accepting: asyncio.Task[None] | None = None
        self._carries = asyncio.Event()
        self._carries.set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    async def __aenter__(self) -> Way:
        self._accepting = asyncio.create_task(self._accept())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()
        self.mend()
        assert self._accepting is not None
        for task in (self._accepting, *self._tasks):
            task.cancel()
        await asyncio.gather(self._accepting, *self._tasks, return_exceptions=True)
        self._socket.close()

    async def cut(self) -> None:
        assert self._accepting is not None
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        self._socket.listen(0)
        for _ in range(2):
            connection = socket.socket()
            connection.setblocking(False)
            with suppress(BlockingIOError):
                connection.connect(self._socket.getsockname())
            self._full.append(connection)
        for writer in list(self._open):
            writer.transport.abort()

    def mend(self) -> None:
        for connection in self._full:
            connection.close()
        self._full.clear()
        self._socket.listen(64)
        self._accepting = asyncio.create_task(self._accept())

    def stop(self) -> None:
        """Carry nothing from now on, while connections stay: as of a process under SIGSTOP."""
        self._carries.clear()

    def go_on(self) -> None:
        self._carries.set()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._socket)
            task = asyncio.create_task(self._carry(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, connection: socket.socket) -> None:
        near = await asyncio.open_connection(sock=connection)
        host, port = self.target.rsplit(":", 1)
        try:
            far = await asyncio.open_connection(host, int(port))
        except OSError:  # nobody is there
            near[1].transport.abort()
            return
        writers = {near[1], far[1]}
        self._open |= writers
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pour(near[0], far[1]))
                group.create_task(self._pour(far[0], near[1]))
        except* OSError:
            pass
        finally:
            self._open -= writers
            for writer in writers:
                writer.transport.abort()

    async def _pour(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            await self._carries.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError  # an end of one is the end of both
