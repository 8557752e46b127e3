"""Who is at the other end of a Unix socket, as surely as over TLS.

    dialler                                               listener
       |--- "nodewire/shm/1", nonce, memory ----------------->|
       |<-- nonce, signature ---------------------------------|
       |--- CONTROL {"t": "auth", ...} through the memory --->|

The listener signs (BIP-340) the tagged hash of a transcript: its public key, both nonces, the inode of the memory, and
the process ids of both ends. Neither end is told the other's: the kernel says with each message which process has sent
it (SCM_CREDENTIALS). A third process that passes messages on between two honest ones is thus itself in the transcripts
of both, which do not agree. The dialler's proof is the event that it sends over TLS, with the hash of the transcript in
place of the certificate's.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from nodewire.errors import BadPeer
from nodewire.nostr import keys as nostr_keys
from nodewire.protocol.encoding.canonical import tagged_hash

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys

TAG = "nodewire/shm/1"
MAGIC = TAG.encode().ljust(16, b"\0")
NONCE_BYTES = 32
HELLO_BYTES = len(MAGIC) + NONCE_BYTES
SIGNATURE_BYTES = 64
REPLY_BYTES = NONCE_BYTES + SIGNATURE_BYTES

_CREDENTIALS = struct.Struct("=iII")
CREDENTIALS_BYTES = _CREDENTIALS.size
_PLACE = struct.Struct("!IIQ")


class Sender(NamedTuple):
    """The process that has sent a message, by the kernel's word; `pid` is 0 if it is not visible from here."""

    pid: int
    uid: int


def sender(credentials: bytes) -> Sender:
    """Who has sent what came with `credentials`. Raises BadPeer."""
    if len(credentials) != CREDENTIALS_BYTES:
        raise BadPeer("user", "the kernel does not say who it is")
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return Sender(pid, uid)


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
