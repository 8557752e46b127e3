"""Whether a port is open from outside: a splice dials who asks it back, where the asker comes from and nowhere else.

What is dialled is the asker's own address, which TCP has proven, at a port that the asker names, and what is looked for
is the asker's own key: so nobody can have a splice look at others' machines, but for whether a port answers of a router
that it shares with them, a few times a minute. nips/24-reach.md.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from nodewire.errors import BadPeer, LinkLost, NodewireError, TimedOut, Unsupported
from nodewire.net import host_port
from nodewire.protocol.encoding.address import SpliceAddress, ip_port
from nodewire.wire.nat import splice_client as splice
from nodewire.wire.transport import identity, tcp
from nodewire.wire.transport.tls import secured

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.nostr.keys import Keys

DIAL_S = 3.0
"""For the connection to come about, and again for its TLS."""
ANSWER_S = 2 * DIAL_S + 2.0
MAX_ASKED = 3
"""Splices that are asked one after the other: any of them may be out of order, or lie."""
_BUFFER_BYTES = 256

Outcome = Literal["open", "stranger", "refused", "silent", "unreachable"]
"""`open`: a node of the asker's key answers; `stranger`: somebody answers, and does not prove to be the asker;
`refused`: by a machine or a router; `silent`: nothing came back."""


@dataclass(frozen=True, slots=True)
class DialbackResult:
    """What became of it. `splice` dialled `at`: where it sees us, and the port."""

    splice: str
    at: str
    outcome: Outcome


async def ask(address: SpliceAddress, port: int, keys: Keys, *, allow_private: bool) -> DialbackResult:
    """Have the splice dial our `port`, at which a node of `keys` listens.

    Raises:
        Unsupported: this splice dials nobody back.
        Busy, NotAllowed: it does not dial us, or not now.
        and as `splice_client.enter`.

    """
    entered = await splice.enter(address, None, keys, allow_private=allow_private, dial=port)
    try:
        async with asyncio.timeout(ANSWER_S):
            said = (await splice.read_message(entered.connection, address.at)).get("dialled")
    except TimeoutError:
        raise TimedOut(address.at, "the splice did not say what came of it") from None
    except LinkLost as error:
        raise Unsupported(address.at, "this splice dials nobody back") from error
    finally:
        entered.close()
    outcome = next((one for one in get_args(Outcome) if one == said), None)
    if outcome is None:
        raise BadPeer("splice", "does not say what came of it")
    return DialbackResult(address.at, host_port.written(str(ip_port(entered.seen)[0]), port), outcome)


async def ask_some(
    addresses: Sequence[SpliceAddress], port: int, keys: Keys, *, allow_private: bool
) -> DialbackResult | NodewireError | None:
    """What the first splice says that found us; if none did, what the first said that has dialled us, or why none has.

    None: there is no splice to be asked.
    """
    dialled: DialbackResult | None = None
    failed: NodewireError | None = None
    for address in addresses[:MAX_ASKED]:
        try:
            found = await ask(address, port, keys, allow_private=allow_private)
        except NodewireError as error:
            failed = failed or error
            continue
        if found.outcome == "open":
            return found
        dialled = dialled or found
    return dialled or failed


async def dial(host: str, port: int, public: str, now_s: float) -> Outcome:
    """Dial a port of `host`, an IP address, and see whether the key `public` listens there. Nothing is sent but TLS."""
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        async with asyncio.timeout(DIAL_S):
            await loop.sock_connect(connection, (host, port))
    except BaseException as error:
        connection.close()
        if isinstance(error, TimeoutError):  # the kernel's own, too
            return "silent"
        if isinstance(error, OSError):
            return "refused" if isinstance(error, ConnectionRefusedError) else "unreachable"
        raise
    try:
        async with asyncio.timeout(DIAL_S):
            channel = await secured(connection, identity.client_context(), _Deaf(), is_server=False)
        try:
            tcp.check_listener(channel, public, now_s)
        finally:
            channel.abort()
    except (OSError, BadPeer):
        return "stranger"
    return "open"


class _Deaf(asyncio.BufferedProtocol):
    """Whatever the other end says before it is hung up on is read by nobody."""

    def __init__(self) -> None:
        self._memory = bytearray(_BUFFER_BYTES)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._memory

    def buffer_updated(self, nbytes: int) -> None:
        return
