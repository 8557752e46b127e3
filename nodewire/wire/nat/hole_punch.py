"""TCP hole punching: both ends connect to each other at the same time, from ports that their routers have opened.

A SYN that leaves opens the way for the other's to come in; where they cross, TCP opens one connection for both (RFC
9293, section 3.5, simultaneous open). https://www.rfc-editor.org/rfc/rfc5128, section 3.4.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from nodewire.errors import LinkLost
from nodewire.wire.transport import tcp

if TYPE_CHECKING:
    from collections.abc import Collection

MAX_TRIES = 40
_PAUSE_S = 0.05
_BACKLOG = 16


def bound(family: socket.AddressFamily, port: int = 0) -> socket.socket:
    """A socket that is not connected yet, whose port others here may use as well: each for another end.

    A router that gives a port one face for all who look at it thus shows the peer what it shows the splice.
    Raises OSError.
    """
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        tcp.choose_congestion(made)
        made.bind(("", port))
    except BaseException:
        made.close()
        raise
    return made


async def punch(family: socket.AddressFamily, port: int, where: Any) -> socket.socket:
    """A connection from our `port` to `where`, who does the same at the same time.

    It is tried until it succeeds, the caller gives up, or it was refused 40 times: a refusal says that the other has
    not begun, or that its router does not like to be knocked at. TCP itself knocks again where nothing answers.

    Raises:
        LinkLost: refused for good.

    """
    loop = asyncio.get_running_loop()
    failed: OSError | None = None
    for _ in range(MAX_TRIES):
        try:
            connection = bound(family, port)
        except OSError as error:
            raise LinkLost("punch", error.strerror or str(error)) from error
        try:
            await loop.sock_connect(connection, where)
            return connection
        except OSError as error:
            connection.close()
            failed = error
        except BaseException:
            connection.close()
            raise
        await asyncio.sleep(_PAUSE_S)
    assert failed is not None
    raise LinkLost("punch", f"{where[0]} refuses: {failed.strerror or failed}") from failed


async def answer(family: socket.AddressFamily, port: int, hosts: Collection[str]) -> socket.socket:
    """A connection that one of `hosts` opens to our `port`: where no router holds its SYN up it comes before ours goes.

    Raises:
        LinkLost: others came, 16 times, or the port cannot be had.

    """
    loop = asyncio.get_running_loop()
    try:
        with bound(family, port) as listening:
            listening.listen(_BACKLOG)
            for _ in range(_BACKLOG):
                connection, whence = await loop.sock_accept(listening)
                if whence[0] in hosts:
                    return connection
                connection.close()
    except OSError as error:
        raise LinkLost("punch", error.strerror or str(error)) from error
    raise LinkLost("punch", "only others came")
