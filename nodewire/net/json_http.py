"""Requests and answers in JSON: what every route of a service of our own reads and says, bounds first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from nodewire.errors import BadInput, NodewireError, NotAllowed, NotFound, OverBudget, PaymentFailed

MAX_BODY_BYTES = 16_384
MAX_EVIDENCE_BYTES = 262_144
"""Of a body that carries signed events: a certificate with 31 votes and a job request."""

_HEX = frozenset("0123456789abcdef")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except NodewireError as error:
        return answer(error.as_dict(), status=_status(error))


def _status(error: NodewireError) -> int:
    match error:
        case NotAllowed(field="token"):
            return 401
        case NotFound():
            return 404
        case PaymentFailed() | OverBudget():
            return 402
        case BadInput():
            return 400
        case _:
            return 409


def answer(data: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(data), status=status, content_type="application/json")


async def body_of(request: web.Request) -> dict[str, Any]:
    """The object that the request carries, in at most 16 KiB. Raises BadInput."""
    return parsed(await raw_of(request, MAX_BODY_BYTES))


async def raw_of(request: web.Request, most: int) -> bytes:
    """The body, at most `most` bytes of it; a longer one is answered with 413."""
    raw = await request.content.read(most + 1)
    while len(raw) <= most and (piece := await request.content.read(most + 1 - len(raw))):
        raw += piece
    if len(raw) > most:
        raise web.HTTPRequestEntityTooLarge(most, len(raw))
    return raw


def parsed(raw: bytes) -> dict[str, Any]:
    """The object in `raw`. Raises BadInput."""
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadInput("body", "not JSON") from error
    if not isinstance(found, dict):
        raise BadInput("body", "not an object")
    return found


def bounded(value: object, name: str, most: int) -> int:
    """`value` as an integer from 0 to `most`."""
    if type(value) is not int or not 0 <= value <= most:
        raise BadInput(name, f"not an integer from 0 to {most}")
    return value


def hex32(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not (isinstance(value, str) and len(value) == 64 and _HEX.issuperset(value)):
        raise BadInput(name, "not 64 lowercase hex digits")
    return value


def query(request: web.Request, name: str, most: int, default: int = 0) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise BadInput(name, f"not an integer from 0 to {most}")
    return bounded(int(text), name, most)


def bearer_token(request: web.Request) -> str:
    """The token of the account that asks. Raises NotAllowed."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        raise NotAllowed("token", "a bearer token is needed")
    return token
