"""Blossom: blobs over HTTP, uploaded and deleted under signed kind 24242 events, fetched by anyone by SHA-256.

https://github.com/hzrd149/blossom (BUD-01, BUD-02; HEAD /upload of BUD-06)
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiohttp import web

from nodewire.core.budget import Budget
from nodewire.errors import BadHash, BadInput, Busy, NodewireError, NotAllowed, NotFound, TimedOut, TooLarge
from nodewire.net.connection_limits import origin_of
from nodewire.nostr.nips import nipb7
from relay import informing
from relay.blobs import downloading
from relay.events.storing import is_full
from relay.turns import working
from relay.turns.sharing import Slots, address_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from nodewire.nostr.event import Event
    from relay.blobs.shelving import Blob, Shelf
    from relay.counting import Counts
    from relay.limits import BlobLimits, Config

_SHARE = "this address has uploaded all that it may (`address_bytes`); its share grows back within days"
_HASH = "{sha256:[0-9a-f]{64}}"
_STATUS: tuple[tuple[type[NodewireError], int], ...] = (
    (NotFound, 404),
    (NotAllowed, 401),
    (Busy, 503),
    (TimedOut, 408),
    (BadHash, 403),
    (TooLarge, 413),
    (BadInput, 400),
)


def add_routes(
    app: web.Application,
    shelf: Shelf,
    config: Config,
    http_url: Callable[[], str],
    clock: Callable[[], float],
    counts: Counts,
    work: Budget,
) -> None:
    """Serve `shelf` from the root of `app`; `http_url()` is the prefix of its URLs. Downloads are charged to `work`."""
    counter = _Counter(shelf, config, http_url, clock, counts, work)
    app.middlewares.append(_errors_as_json)
    app.router.add_put("/upload", counter.upload)
    app.router.add_head("/upload", counter.may_upload)
    for path in (f"/{_HASH}", f"/{_HASH}.{{extension:[A-Za-z0-9]{{1,16}}}}"):
        app.router.add_get(path, counter.fetch)  # and HEAD
        app.router.add_delete(path, counter.delete)
    app.router.add_get("/list/{pubkey:[0-9a-f]{64}}", counter.list)


class _Counter:
    """Where blobs are handed in and out: one method for each route."""

    def __init__(
        self,
        shelf: Shelf,
        config: Config,
        http_url: Callable[[], str],
        clock: Callable[[], float],
        counts: Counts,
        work: Budget,
    ) -> None:
        self._shelf, self._config, self._http_url, self._clock = shelf, config, http_url, clock
        self._counts, self._work = counts, work
        limits = config.blob_limits
        self._limits = limits
        self._uploads = Slots("uploads", limits.uploads, counts)
        self._downloads = Slots("downloads", limits.downloads, counts)
        self._shares = Budget(limits.address_bytes / limits.kept_s, limits.address_bytes, time.monotonic)

    async def upload(self, request: web.Request) -> web.StreamResponse:
        limits, shares = self._limits, self._shares
        grant = authorized(request, "upload", self._now_s(), self._config)
        address = address_of(request, self._config.proxies)
        origin, size = origin_of(address), request.content_length
        if size is not None and size > shares.available(origin):
            raise TooLarge("quota", _SHARE)
        await working.pay(self._work, origin, working.UPLOAD, self._counts)
        chunks = _charged(_read(request, limits), shares, origin, limits.least_blob_bytes)
        type_ = request.content_type[:100]
        async with self._uploads.one(address, self._longest_s(min(size or limits.blob_bytes, limits.blob_bytes))):
            blob = await self._shelf.take(chunks, size, grant.pubkey, set(grant.values("x")), type_, self._now_s())
        return web.json_response(self._described(blob))

    async def may_upload(self, request: web.Request) -> web.StreamResponse:
        await self._glanced(request)
        grant = authorized(request, "upload", self._now_s(), self._config)
        size = request.headers.get("X-Content-Length", "")
        if not (size.isascii() and size.isdecimal() and len(size) <= 16):
            raise BadInput("X-Content-Length", "not a number of bytes")
        self._shelf.fits(int(size), grant.pubkey)
        return web.Response()

    async def fetch(self, request: web.Request) -> web.StreamResponse:
        blob = self._shelf.use(request.match_info["sha256"], self._now_s())
        address = address_of(request, self._config.proxies)
        headers = {
            "Content-Type": blob.type,
            "Cache-Control": "public, max-age=31536000, immutable",
            # Strangers' files come from the same origin as the relay's own pages: they must not act as one.
            "Content-Security-Policy": "default-src 'none'; sandbox",
            "X-Content-Type-Options": "nosniff",
            **informing.CORS,
        }

        async def pay(nbytes: int) -> None:
            await working.pay(self._work, origin_of(address), working.of_download(nbytes), self._counts)

        async with self._downloads.one(address, self._longest_s(blob.bytes)):
            return await downloading.send(request, self._shelf.path(blob.sha256), headers, pay)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        await self._glanced(request)
        sha256 = request.match_info["sha256"]
        grant = authorized(request, "delete", self._now_s(), self._config, sha256)
        self._shelf.find(sha256)
        if not await self._shelf.drop(sha256, grant.pubkey):
            return _error(403, "you did not upload this blob")
        return web.Response()

    async def list(self, request: web.Request) -> web.StreamResponse:
        await self._glanced(request)
        since_s = _seconds(request.query.get("since", "0"))
        until_s = _seconds(request.query.get("until", "9" * 15))
        blobs = self._shelf.list(request.match_info["pubkey"], since_s, until_s)
        return web.json_response([self._described(blob) for blob in blobs])

    async def _glanced(self, request: web.Request) -> None:
        origin = origin_of(address_of(request, self._config.proxies))
        await working.pay(self._work, origin, working.GLANCE, self._counts)

    def _described(self, blob: Blob) -> dict[str, object]:
        return {
            "url": f"{self._http_url()}/{blob.sha256}.bin",
            "sha256": blob.sha256,
            "size": blob.bytes,
            "type": blob.type,
            "uploaded": blob.uploaded_at_s,
        }

    def _longest_s(self, size: int) -> float:
        return 2 * self._limits.stall_s + size / self._limits.least_bytes_s

    def _now_s(self) -> int:
        return int(self._clock())


def authorized(request: web.Request, verb: nipb7.Verb, now_s: int, config: Config, sha256: str | None = None) -> Event:
    """The token in a request's Authorization header that allows `verb`, of the blob `sha256` where that is known.

    Raises:
        NotAllowed: there is none, or it is forged, expired, or for something else.

    """
    server = urlsplit(config.url or f"ws://{request.host}").hostname
    try:
        token = nipb7.from_header(request.headers.get("Authorization", ""))
        nipb7.check_token(token, verb=verb, now_s=now_s, server=server, sha256=sha256)
    except BadInput as error:
        raise NotAllowed(error.field, error.reason) from error
    return token


async def _read(request: web.Request, limits: BlobLimits) -> AsyncIterator[bytes]:
    """The body as it comes. An uploader that brings too little in a span of `stall_s` is let go."""
    clock = asyncio.get_running_loop().time
    came, until_s = 0, clock() + limits.stall_s
    while True:
        try:
            async with asyncio.timeout_at(until_s):
                chunk = await request.content.readany()
        except TimeoutError as error:
            if came < limits.least_bytes_s * limits.stall_s:
                raise TimedOut("body", f"{came} bytes came in {limits.stall_s:g} s; send faster") from error
            came, until_s = 0, clock() + limits.stall_s
            continue
        if not chunk:
            return
        came += len(chunk)
        yield chunk


async def _charged(
    chunks: AsyncIterator[bytes], shares: Budget, origin: str, least_blob_bytes: int
) -> AsyncIterator[bytes]:
    if not shares.spend(origin, least_blob_bytes):
        raise TooLarge("quota", _SHARE)
    async for chunk in chunks:
        paid = min(len(chunk), least_blob_bytes)
        least_blob_bytes -= paid
        if not shares.spend(origin, len(chunk) - paid):
            raise TooLarge("quota", _SHARE)
        yield chunk


@web.middleware
async def _errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except NodewireError as error:
        status = next(status for cls, status in _STATUS if isinstance(error, cls))
        return _error(status, str(error))
    except (OSError, sqlite3.Error) as error:
        if not is_full(error):
            raise
        return _error(507, "the store's disk is full; try another store, or later")


def _error(status: int, reason: str) -> web.Response:
    reason = reason.encode("ascii", "replace").decode()[:200].replace("\r", " ").replace("\n", " ")
    return web.json_response(
        {"message": reason},
        status=status,
        headers={"X-Reason": reason} | ({"Retry-After": "1"} if status == 503 else {}),
    )


def _seconds(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 16):
        raise BadInput("since or until", "not a unix time in seconds")
    return int(text)
