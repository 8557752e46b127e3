"""How far this machine's clock is from those of the relays and blob stores that it uses, by their HTTP dates.

The median of those that answer counts. Oracles' events would not do: a clock that is ahead asks relays for what comes
after its own time, and is sent none of them.
"""

from __future__ import annotations

import asyncio
import time
from email.utils import parsedate_to_datetime
from statistics import median
from typing import TYPE_CHECKING

import aiohttp

from nodewire.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

HTTP_DATE_S = 1.0
"""A date is of whole seconds."""
_ANSWER_S = 5.0


async def measured_s(servers: Iterable[str]) -> float:
    """By how many seconds this clock is ahead (below 0: behind). `servers`: URLs of HTTP servers or relays.

    Raises:
        NotFound: none of them says what time it is.

    """
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_ANSWER_S)) as session:
        found = await asyncio.gather(*(_of(session, _http(url)) for url in dict.fromkeys(servers)))
    known = [one for one in found if one is not None]
    if not known:
        raise NotFound("clock", "no relay or blob store says what time it is")
    return median(known)


def describe(offset_s: float) -> str:
    """The offset in words, with what to do."""
    side = "ahead of" if offset_s > 0 else "behind"
    return f"{abs(offset_s):.0f} s {side} the relays' and blob stores': set it by NTP (timedatectl)"


def _http(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{ {'ws': 'http', 'wss': 'https'}.get(scheme, scheme) }://{rest}"


async def _of(session: aiohttp.ClientSession, url: str) -> float | None:
    began_s = time.time()
    try:
        async with session.head(f"{url.rstrip('/')}/{'0' * 64}", allow_redirects=False) as answer:
            date = parsedate_to_datetime(answer.headers["Date"])
    except (aiohttp.ClientError, TimeoutError, OSError, KeyError, ValueError):
        return None
    return (began_s + time.time()) / 2 - (date.timestamp() + HTTP_DATE_S / 2)
