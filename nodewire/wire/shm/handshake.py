"""The first words over a Unix socket: the memory goes over.

The listener shows whose key it has (`peer_credentials.py`).
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import BadPeer, LinkLost
from nodewire.wire.shm import mapping as memory
from nodewire.wire.shm import peer_credentials
from nodewire.wire.shm.mapping import RingMapping

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys

_DESCRIPTOR = array.array("i").itemsize


@dataclass(frozen=True, slots=True)
class HandshakeResult:
    """What both ends have then."""

    mapping: RingMapping
    bound: bytes
    """The transcript, which is this channel's alone."""


async def greet(connection: socket.socket, listener: str) -> HandshakeResult:
    """The dialler's part, with the public key that must answer.

    Raises:
        BadPeer: somebody else is there, or one of another user.
        LinkLost: the other end hung up.
        OSError: no memory, or no connection.

    """
    descriptor = memory.create()
    try:
        nonce = os.urandom(peer_credentials.NONCE_BYTES)
        socket.send_fds(connection, [peer_credentials.hello(nonce)], [descriptor])
        answer, there, surplus = await _received(connection, peer_credentials.REPLY_BYTES)
        for other in surplus:
            os.close(other)
        if len(answer) != peer_credentials.REPLY_BYTES:
            raise LinkLost("shared memory", "the listener hung up")
        said = peer_credentials.transcript(
            listener,
            nonce,
            answer[: peer_credentials.NONCE_BYTES],
            listener_pid=_of_this_user(there),
            dialler_pid=os.getpid(),
            inode=os.fstat(descriptor).st_ino,
        )
        peer_credentials.check_reply(answer, listener, said)
        return HandshakeResult(RingMapping(descriptor, dialled=True), said)
    finally:
        os.close(descriptor)


async def answer(connection: socket.socket, keys: Keys) -> HandshakeResult:
    """The listener's part. The dialler has proven nothing yet when this returns.

    Raises:
        BadPeer: what came is no greeting, or from another user, or its memory could be taken away again.
        OSError: no connection.

    """
    data, there, descriptors = await _received(connection, peer_credentials.HELLO_BYTES)
    try:
        dialler_nonce = peer_credentials.parse_hello(data)
        if len(descriptors) != 1:
            raise BadPeer("memory", f"{len(descriptors)} came with the greeting, not one")
        pid = _of_this_user(there)
        memory.check(descriptors[0])
        nonce = os.urandom(peer_credentials.NONCE_BYTES)
        said = peer_credentials.transcript(
            keys.public,
            dialler_nonce,
            nonce,
            listener_pid=os.getpid(),
            dialler_pid=pid,
            inode=os.fstat(descriptors[0]).st_ino,
        )
        mapping = RingMapping(descriptors[0], dialled=False)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    try:
        connection.send(peer_credentials.reply(keys, nonce, said))
    except OSError:
        mapping.close()
        raise
    return HandshakeResult(mapping, said)


def watch(connection: socket.socket) -> None:
    """Have the kernel say who sends what. Raises OSError."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def _of_this_user(credentials: bytes) -> int:
    """The process id of whoever has sent something. Raises BadPeer."""
    sender = peer_credentials.sender(credentials)
    if sender.uid != os.geteuid():
        raise BadPeer("user", f"of another user, {sender.uid}")
    return sender.pid


async def _received(connection: socket.socket, most: int) -> tuple[bytes, bytes, array.array[int]]:
    """The next message: up to `most` bytes of it, its sender's credentials, and descriptors, which are the caller's."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)
    room = socket.CMSG_SPACE(peer_credentials.CREDENTIALS_BYTES) + socket.CMSG_SPACE(_DESCRIPTOR)
    data, extra, _, _ = connection.recvmsg(most, room, socket.MSG_CMSG_CLOEXEC)
    credentials, descriptors = b"", array.array("i")
    for level, kind, found in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            credentials = found
        elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(found[: len(found) - len(found) % _DESCRIPTOR])
    return data, credentials, descriptors
