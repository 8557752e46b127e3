"""Fetches what a request's URL names: guarded, bounded, timed; what it must hash to is for who reads it to check."""

from __future__ import annotations

import asyncio
from typing import IO

import aiohttp
from yarl import URL

from nodewire.errors import BadHash, BadInput, LinkLost, NotAllowed, NotFound, TimedOut, TooLarge
from nodewire.net import address_policy

MAX_REDIRECTS = 3
_CHUNK_BYTES = 262_144


async def download(url: str, file: IO[bytes], size: int, *, allow_private: bool, timeout_s: float) -> None:
    """Write the `size` bytes at `url` to `file`. Each redirect is looked at as the URL was.

    Raises:
        BadInput: it is no URL, or redirects to none.
        NotAllowed: an address or scheme that `address_policy.connector` excludes, or too many redirects.
        NotFound: the server does not have it, or refuses.
        TooLarge, BadHash: more or fewer bytes than `size`.
        LinkLost, TimedOut: no connection, or more than `timeout_s`.

    """
    try:
        async with asyncio.timeout(timeout_s):
            there: URL | None = address_policy.parse(url)
            for _ in range(MAX_REDIRECTS + 1):
                if there is None:
                    return
                there = await _one(there, file, size, allow_private)
            if there is not None:
                raise NotAllowed("url", f"more than {MAX_REDIRECTS} redirects")
    except TimeoutError as error:
        raise TimedOut("url", f"not here within {timeout_s:.0f} s") from error


async def _one(url: URL, file: IO[bytes], size: int, allow_private: bool) -> URL | None:
    """Where to look instead; None if the file is there."""
    connector = address_policy.connector(url, allow_private=allow_private)
    headers = {"Accept-Encoding": "identity"}
    try:
        async with (
            aiohttp.ClientSession(connector=connector, auto_decompress=False) as session,
            session.get(url, headers=headers, allow_redirects=False) as got,
        ):
            if got.status in (301, 302, 303, 307, 308):
                return address_policy.parse(_joined(url, got.headers.get("Location", "")))
            if got.status != 200:
                raise NotFound("url", f"the server says {got.status}")
            if (got.content_length or 0) > size:
                raise TooLarge("url", f"{got.content_length} bytes, {size} were announced")
            came = 0
            async for piece in got.content.iter_chunked(_CHUNK_BYTES):
                came += len(piece)
                if came > size:
                    raise TooLarge("url", f"more than the {size} bytes that were announced")
                await asyncio.to_thread(file.write, piece)
            if came < size:
                raise BadHash("url", f"{came} bytes, {size} were announced")
    except (aiohttp.ClientError, OSError) as error:
        raise LinkLost("url", f"{url.host}: {error}"[:300]) from error
    return None


def _joined(url: URL, location: str) -> str:
    try:
        return str(url.join(URL(location)))
    except ValueError as error:
        raise BadInput("url", "redirects to no URL") from error
