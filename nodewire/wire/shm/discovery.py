"""How processes of one host find each other: by public key, at a Unix socket in a folder that only their user enters.

The folder is `nodewire-UID` among the host's temporary files, mode 0700. A node that listens has a socket there, named
by its network namespace and its public key: so nothing is announced, nobody else's words name a path, and whoever means
to be several machines on one, by namespaces, is. The other end must be a process of the same user, and proves whose
key it has (`peer_credentials.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nodewire.errors import Busy, LinkLost
from nodewire.wire.shm import handshake
from nodewire.wire.shm.channel import SharedChannel
from nodewire.wire.shm.mapping import LINK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nodewire.nostr.keys import Keys
    from nodewire.wire.shm.handshake import HandshakeResult
    from nodewire.wire.transport.identity import Identity
    from nodewire.wire.transport.tcp import Arrival, Listener

MAX_BYTES = 256 * 2**20
"""Of memory that all links of a process share with others; links beyond go over TLS."""

_BACKLOG = 128
_NAME_DIGITS = 32  # of a public key: a path to a socket has 107 bytes at most
_NAME = re.compile(r"[0-9]+-[0-9a-f]{32}(\.[0-9]+)?")
_PUBLIC = re.compile(r"[0-9a-f]{64}")
_MADE_S = 60.0
_NETWORK = "/proc/self/ns/net"

_log = logging.getLogger("nodewire.wire")


class SameHost:
    """The way to the peers of `keys` on this host; see transport.Beside."""

    def __init__(self, keys: Keys, folder: Path | None = None) -> None:
        """`folder`: where sockets are, if not where every process of this user looks."""
        self._keys = keys
        self._folder = folder or Path(tempfile.gettempdir()) / f"nodewire-{os.geteuid()}"
        self._free = MAX_BYTES

    def knows(self, public: str) -> bool:
        """Whether the node `public` may be listening on this host."""
        try:
            return _PUBLIC.fullmatch(public) is not None and stat.S_ISSOCK(self._path(public).lstat().st_mode)
        except OSError:
            return False

    async def dial(self, public: str, protocol: asyncio.BufferedProtocol) -> None:
        """Open a channel to the node `public`, which has proven itself when this returns.

        Raises:
            LinkLost: it is not there, or hangs up.
            BadPeer: somebody else is there.
            Busy: links of this process share as much memory as they may.

        """
        try:
            self._check_folder()
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                handshake.watch(connection)
                connection.connect(bytes(self._path(public)))
                await self._open(connection, handshake.greet(connection, public), protocol)
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            raise LinkLost("shared memory", error.strerror or str(error)) from error

    async def listen(self, arrived: Callable[[Arrival], None]) -> Listener:
        """Tell every connection to `arrived`. Raises OSError: this system, or its folder, does not allow it."""
        if sys.platform != "linux":
            raise OSError("memory that a peer cannot take away again is Linux's")
        with suppress(FileExistsError):
            self._folder.mkdir(0o700)
        self._check_folder()
        sweep(self._folder)
        return _HostListener(self, self._path(self._keys.public), arrived)

    async def accept(self, connection: socket.socket, protocol: asyncio.BufferedProtocol) -> None:
        """Secure a connection that came. Raises BadPeer, Busy, OSError."""
        try:
            await self._open(connection, handshake.answer(connection, self._keys), protocol)
        except BaseException:
            connection.close()
            raise

    async def _open(
        self,
        connection: socket.socket,
        greeted: Coroutine[None, None, HandshakeResult],
        protocol: asyncio.BufferedProtocol,
    ) -> None:
        if self._free < LINK_BYTES:
            greeted.close()
            raise Busy("shared memory", f"links share {MAX_BYTES} bytes already")
        self._free -= LINK_BYTES
        try:
            done = await greeted
        except BaseException:
            self._freed()
            raise
        SharedChannel(connection, done.mapping, done.bound, protocol, self._freed)

    def _freed(self) -> None:
        self._free += LINK_BYTES

    def _check_folder(self) -> None:
        """Raises OSError: it is not there, or others can enter it."""
        found = self._folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(f"{self._folder} is not a folder that this user alone may enter")

    def _path(self, public: str) -> Path:
        return self._folder / f"{os.stat(_NETWORK).st_ino}-{public[:_NAME_DIGITS]}"


def sweep(folder: Path) -> None:
    """Remove the sockets in a folder that are named as nodes' are and at which nobody listens: of daemons that died.

    Those that were made just now are left alone: their nodes may be about to listen.
    """
    for path in folder.iterdir():
        if _NAME.fullmatch(path.name) is None:
            continue
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection:
            found = path.lstat()
            if not stat.S_ISSOCK(found.st_mode) or time.time() - found.st_mtime < _MADE_S:
                continue
            try:
                connection.connect(bytes(path))
            except ConnectionRefusedError:
                path.unlink()


class _HostListener:
    """A socket that is given its name once it listens: a name where nobody answers is one that died."""

    def __init__(self, host: SameHost, path: Path, arrived: Callable[[Arrival], None]) -> None:
        self.address = str(path)
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            fresh.unlink(missing_ok=True)
            handshake.watch(self._socket)  # what it accepts inherits that
            self._socket.bind(bytes(fresh))
            self._socket.listen(_BACKLOG)
            self._inode = fresh.lstat().st_ino
            fresh.rename(path)
        except OSError:
            self._socket.close()
            raise
        self._task = asyncio.create_task(self._accept(host, arrived))

    async def _accept(self, host: SameHost, arrived: Callable[[Arrival], None]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._socket)
            except OSError as error:  # out of descriptors, say: the socket stays
                _log.warning("accept: %s", error)
                await asyncio.sleep(0.05)
                continue
            arrived(_HostArrival(host, connection))

    def close(self) -> None:
        with suppress(OSError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()
        self._task.cancel()
        self._task.add_done_callback(lambda _: self._socket.close())


class _HostArrival:
    address = "this host"

    def __init__(self, host: SameHost, connection: socket.socket) -> None:
        self._host = host
        self._socket = connection

    async def accept(self, protocol: asyncio.BufferedProtocol, identity: Identity) -> None:
        await self._host.accept(self._socket, protocol)

    def refuse(self) -> None:
        self._socket.close()
