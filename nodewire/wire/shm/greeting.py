"""The first words over a Unix socket: the memory goes over, and the listener shows whose key it has (`proof.py`)."""

from __future__ import annotations

import array
import asyncio
import os
import socket
from dataclasses import dataclass

from nodewire.errors import BadPeer, LinkLost
from nodewire.nostr.keys import Keys
from nodewire.wire.shm import memory, proof
from nodewire.wire.shm.memory import Mapping

_DESCRIPTOR = array.array("i").itemsize


@dataclass(frozen=True, slots=True)
class Greeted:
    """What both ends have then."""

    mapping: Mapping
    bound: bytes
    """The transcript, which is this channel's alone."""


async def greet(connection: socket.socket, listener: str) -> Greeted:
    """The dialler's part, with the public key that must answer.

    Raises:
        BadPeer: somebody else is there, or one of another user.
        LinkLost: the other end hung up.
        OSError: no memory, or no connection.
    """
    there = _of_this_user(connection)
    descriptor = memory.create()
    try:
        nonce = os.urandom(proof.NONCE_BYTES)
        socket.send_fds(connection, [proof.hello(nonce)], [descriptor])
        await _readable(connection)
        answer = connection.recv(proof.REPLY_BYTES)
        if len(answer) != proof.REPLY_BYTES:
            raise LinkLost("shared memory", "the listener hung up")
        said = proof.transcript(
            listener,
            nonce,
            answer[: proof.NONCE_BYTES],
            listener_pid=there.pid,
            dialler_pid=os.getpid(),
            inode=os.fstat(descriptor).st_ino,
        )
        proof.check_reply(answer, listener, said)
        return Greeted(Mapping(descriptor, dialled=True), said)
    finally:
        os.close(descriptor)


async def answer(connection: socket.socket, keys: Keys) -> Greeted:
    """The listener's part. The dialler has proven nothing yet when this returns.

    Raises:
        BadPeer: what came is no greeting, or from another user, or its memory could be taken away again.
        OSError: no connection.
    """
    there = _of_this_user(connection)
    await _readable(connection)
    # Ordinary recvmsg hands a program that is started meanwhile the descriptor, too.
    data, extra, _, _ = connection.recvmsg(proof.HELLO_BYTES, socket.CMSG_LEN(_DESCRIPTOR), socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, found in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(found[: len(found) - len(found) % _DESCRIPTOR])
    try:
        dialler_nonce = proof.parse_hello(data)
        if len(descriptors) != 1:
            raise BadPeer("memory", "none came with the greeting")
        memory.check(descriptors[0])
        nonce = os.urandom(proof.NONCE_BYTES)
        said = proof.transcript(
            keys.public,
            dialler_nonce,
            nonce,
            listener_pid=os.getpid(),
            dialler_pid=there.pid,
            inode=os.fstat(descriptors[0]).st_ino,
        )
        mapping = Mapping(descriptors[0], dialled=False)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    try:
        connection.send(proof.reply(keys, nonce, said))
    except OSError:
        mapping.close()
        raise
    return Greeted(mapping, said)


def _of_this_user(connection: socket.socket) -> proof.Peer:
    there = proof.peer(connection)
    if there.uid != os.geteuid():
        raise BadPeer("user", f"of another user, {there.uid}")
    return there


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)
