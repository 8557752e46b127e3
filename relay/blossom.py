"""Blossom: blobs over HTTP, uploaded and deleted under signed kind 24242 events, fetched by anyone by SHA-256.

https://github.com/hzrd149/blossom (BUD-01, BUD-02; HEAD /upload of BUD-06)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

from nodewire.errors import BadHash, BadInput, Busy, NodewireError, NotAllowed, NotFound, TimedOut, TooLarge
from nodewire.nostr import nipb7
from nodewire.nostr.event import Event
from relay.limits import Config
from relay.shelving import Blob, Shelf

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
    app: web.Application, shelf: Shelf, config: Config, http_url: Callable[[], str], clock: Callable[[], float]
) -> None:
    """Serve `shelf` from the root of `app`; `http_url()` is the prefix of blobs' URLs."""

    def described(blob: Blob) -> dict[str, object]:
        url = f"{http_url()}/{blob.sha256}.bin"
        return {
            "url": url,
            "sha256": blob.sha256,
            "size": blob.bytes,
            "type": blob.type,
            "uploaded": blob.uploaded_at_s,
        }

    async def upload(request: web.Request) -> web.StreamResponse:
        grant = authorized(request, "upload", int(clock()), config)
        chunks = _read(request, config.blob_limits.stall_s)
        type_ = request.content_type[:100]
        blob = await shelf.take(
            chunks, request.content_length, grant.pubkey, set(grant.values("x")), type_, int(clock())
        )
        return web.json_response(described(blob))

    async def may_upload(request: web.Request) -> web.StreamResponse:
        grant = authorized(request, "upload", int(clock()), config)
        size = request.headers.get("X-Content-Length", "")
        if not (size.isascii() and size.isdecimal() and len(size) <= 16):
            raise BadInput("X-Content-Length", "not a number of bytes")
        shelf.fits(int(size), grant.pubkey)
        return web.Response()

    async def fetch(request: web.Request) -> web.StreamResponse:
        blob = shelf.use(request.match_info["sha256"], int(clock()))
        return web.FileResponse(
            shelf.path(blob.sha256),
            headers={
                "Content-Type": blob.type,
                "Cache-Control": "public, max-age=31536000, immutable",
                # Strangers' files come from the same origin as the relay's own pages: they must not act as one.
                "Content-Security-Policy": "default-src 'none'; sandbox",
                "X-Content-Type-Options": "nosniff",
            },
        )

    async def delete(request: web.Request) -> web.StreamResponse:
        sha256 = request.match_info["sha256"]
        grant = authorized(request, "delete", int(clock()), config, sha256)
        shelf.find(sha256)
        if not await shelf.drop(sha256, grant.pubkey):
            return _error(403, "you did not upload this blob")
        return web.Response()

    async def list_(request: web.Request) -> web.StreamResponse:
        since_s = _seconds(request.query.get("since", "0"))
        until_s = _seconds(request.query.get("until", "9" * 15))
        blobs = shelf.list(request.match_info["pubkey"], since_s, until_s)
        return web.json_response([described(blob) for blob in blobs])

    app.middlewares.append(_errors_as_json)
    app.router.add_put("/upload", upload)
    app.router.add_head("/upload", may_upload)
    for path in (f"/{_HASH}", f"/{_HASH}.{{extension:[A-Za-z0-9]{{1,16}}}}"):
        app.router.add_get(path, fetch)  # and HEAD
        app.router.add_delete(path, delete)
    app.router.add_get("/list/{pubkey:[0-9a-f]{64}}", list_)


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


async def _read(request: web.Request, stall_s: float) -> AsyncIterator[bytes]:
    """The body as it comes; an uploader who sends nothing for `stall_s` is let go."""
    while True:
        try:
            async with asyncio.timeout(stall_s):
                chunk = await request.content.readany()
        except TimeoutError as error:
            raise TimedOut("body", f"nothing came for {stall_s:g} s") from error
        if not chunk:
            return
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


def _error(status: int, reason: str) -> web.Response:
    reason = reason.encode("ascii", "replace").decode()[:200].replace("\r", " ").replace("\n", " ")
    return web.json_response({"message": reason}, status=status, headers={"X-Reason": reason})


def _seconds(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 16):
        raise BadInput("since or until", "not a unix time in seconds")
    return int(text)
