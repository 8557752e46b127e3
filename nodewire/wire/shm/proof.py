"""Who is at the other end of a Unix socket, as surely as over TLS.

    dialler                                               listener
       |--- "nodewire/shm/1", nonce, memory ----------------->|
       |<-- nonce, signature ---------------------------------|
       |--- CONTROL {"t": "auth", ...} through the memory --->|

The listener signs (BIP-340) the tagged hash of a transcript: its public key, both nonces, the inode of the memory, and
the process ids of both ends. Neither end is told the other's process id: the kernel says who connected and who listens
(SO_PEERCRED). A third process that passes messages on between two honest ones is thus itself in the transcript of
both, and they do not agree. The dialler's proof is the event that it sends over TLS, with the hash of the transcript
in place of the certificate's.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

from nodewire.errors import BadPeer
from nodewire.nostr import keys as nostr_keys
from nodewire.nostr.keys import Keys
from nodewire.protocol.canonical import tagged_hash

TAG = "nodewire/shm/1"
MAGIC = TAG.encode().ljust(16, b"\0")
NONCE_BYTES = 32
HELLO_BYTES = len(MAGIC) + NONCE_BYTES
SIGNATURE_BYTES = 64
REPLY_BYTES = NONCE_BYTES + SIGNATURE_BYTES

_CREDENTIALS = struct.Struct("=iII")
_PLACE = struct.Struct("!IIQ")


class Peer(NamedTuple):
    """The process at the other end, by the kernel's word; `pid` is 0 if it is not visible from here."""

    pid: int
    uid: int


def peer(connection: socket.socket) -> Peer:
    """Who had this socket when it was connected, or began to listen."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    return Peer(pid, uid)


def hello(nonce: bytes) -> bytes:
    return MAGIC + nonce


def parse_hello(data: bytes) -> bytes:
    """The dialler's nonce. Raises BadPeer."""
    if len(data) != HELLO_BYTES or not data.startswith(MAGIC):
        raise BadPeer("hello", f"not {TAG}")
    return data[len(MAGIC) :]


def transcript(
    listener: str, dialler_nonce: bytes, listener_nonce: bytes, *, listener_pid: int, dialler_pid: int, inode: int
) -> bytes:
    """What both ends know of this very channel; `listener` is its public key, 64 hex digits."""
    return bytes.fromhex(listener) + dialler_nonce + listener_nonce + _PLACE.pack(listener_pid, dialler_pid, inode)


def reply(keys: Keys, listener_nonce: bytes, said: bytes) -> bytes:
    """The listener's answer, over the transcript `said`."""
    return listener_nonce + keys.sign(tagged_hash(TAG, said))


def check_reply(answer: bytes, listener: str, said: bytes) -> None:
    """Raises BadPeer: the key `listener` does not vouch for the transcript `said`."""
    if not nostr_keys.verify(listener, tagged_hash(TAG, said), answer[NONCE_BYTES:]):
        raise BadPeer("signature", "the listener does not vouch for this channel")
