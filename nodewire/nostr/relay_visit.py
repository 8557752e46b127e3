"""One event brought to one relay that a stranger has named, on a connection of its own.

A URL from a stranger may mean this machine, or one beside it. So the address that is checked is the one that is
dialled, redirects end the visit, and what the relay says is bounded in size and time.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

from nodewire.errors import BadInput, LinkLost, NotAllowed, TimedOut, TooLarge
from nodewire.net import address_policy
from nodewire.nostr.link import MAX_WORDS_CHARS, Link, check_taken
from nodewire.nostr.nips import nip01

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.nips.nip01 import Ok

MAX_URL_CHARS = 256
_SCHEMES = {"wss": "https", "ws": "http"}


def parse(url: str) -> str:
    """The relay that a stranger's text names, in one spelling: host in lower case, no default port, no query.

    Raises:
        TooLarge, BadInput: it is none, or has a user, a query or a fragment.

    """
    if len(url) > MAX_URL_CHARS:
        raise TooLarge("relay", f"a URL of {len(url)} characters, at most {MAX_URL_CHARS}")
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in _SCHEMES or not url.isascii() or not url.isprintable():
        raise BadInput("relay", "not a ws:// or wss:// URL of printable ASCII")
    parsed = address_policy.parse(f"{_SCHEMES[scheme.lower()]}://{rest}")
    if parsed.query_string:
        raise BadInput("relay", "a URL with a query")
    return str(parsed.with_scheme(scheme.lower())).rstrip("/")


async def publish(
    url: str, event: Event, keys: Keys | None = None, *, allow_private: bool = False, timeout_s: float = 10.0
) -> None:
    """Return once the relay at `url` has the event. With `keys` a relay that asks is told who publishes (NIP-42).

    Without `allow_private` only public addresses are dialled, and only over TLS; with it private ones as well.

    Raises:
        RelayRefused: the relay's word that it takes no such event, now or later.
        Busy: it does not take the event now.
        LinkLost, TimedOut: it is away, or no relay.
        NotAllowed, BadInput, TooLarge: the URL, or what it stands for, is excluded.

    """
    target = _dialled(parse(url))
    connector = address_policy.connector(target, allow_private=allow_private)
    link = Link(url, keys, time.time)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, trace_configs=[_no_redirects()]) as session,
            asyncio.timeout(timeout_s),
        ):
            # The connection ends with the session: a relay that does not say goodbye has answered all the same.
            socket = await session.ws_connect(target, max_msg_size=nip01.MAX_MESSAGE_BYTES)
            answer = await _answer(link, socket, event)
    except TimeoutError as error:
        raise TimedOut("relay", f"{url} did not answer within {timeout_s:g} s") from error
    except (aiohttp.ClientError, OSError) as error:
        raise LinkLost("relay", f"{url}: {error}"[:MAX_WORDS_CHARS]) from error
    check_taken(url, answer)


async def _answer(link: Link, socket: aiohttp.ClientWebSocketResponse, event: Event) -> Ok:
    """What the relay at the end of `socket` says to the event. Raises LinkLost: it says nothing and hangs up."""
    outbox: asyncio.Queue[str] = asyncio.Queue()

    async def write() -> None:
        while True:
            await socket.send_str(await outbox.get())

    async def read() -> None:
        async for message in socket:
            if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                link.receive(message.data)
            if link.is_hostile:
                return

    link.up(outbox.put_nowait)
    asked = asyncio.create_task(link.publish(event))
    lines = [asyncio.create_task(write()), asyncio.create_task(read())]
    try:
        await asyncio.wait((asked, *lines), return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            return asked.result()
        for line in lines:
            if line.done():
                line.result()
        raise LinkLost("relay", f"{link.url} hung up, or talks nonsense")
    finally:
        for task in (asked, *lines):
            task.cancel()
        await asyncio.gather(asked, *lines, return_exceptions=True)


def _dialled(url: str) -> URL:
    """The http(s) URL that a relay's websocket is opened by."""
    parsed = URL(url)
    return parsed.with_scheme(_SCHEMES[parsed.scheme])


def _no_redirects() -> aiohttp.TraceConfig:
    async def refuse(*_: object) -> None:
        raise NotAllowed("relay", "it redirects")

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(refuse)
    return trace
