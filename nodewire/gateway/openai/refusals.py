"""Errors as OpenAI's clients know them: a status, and {"error": {message, type, param, code}}.

https://platform.openai.com/docs/guides/error-codes. `code` is this software's own (`nodewire.errors`), except where
OpenAI's clients look for one of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from nodewire.errors import NodewireError, OverBudget
from nodewire.gateway.accounts import TooFast
from nodewire.gateway.line import TooMany
from nodewire.net.http_server import RETRY_S

HEADERS = web.RequestKey("headers", dict[str, str])
"""What every answer to a request has among its headers."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How errors of one code are told. `param`: their field names a part of the client's request."""

    status: int
    type: str
    param: bool = False
    code: str = ""
    """In place of the error's own."""


_ASKED = Shape(400, "invalid_request_error", param=True)
_OTHERS = Shape(502, "server_error")
"""What somebody on the market did: no client can mend it, and another attempt may meet others."""
_LATER = Shape(503, "server_error")
SHAPES: dict[str, Shape] = {
    "error": Shape(500, "server_error"),
    "bad-input": _ASKED,
    "unsupported": _ASKED,
    "too-large": _ASKED,
    "bad-config": Shape(500, "server_error"),
    "not-found": _LATER,
    "ambiguous": _ASKED,
    "not-allowed": Shape(403, "permission_error"),
    "busy": _LATER,
    "no-quorum": _LATER,
    "no-provider": _LATER,
    "over-budget": _LATER,
    "payment-required": _LATER,
    "payment-failed": _LATER,
    "work-required": _LATER,
    "timed-out": Shape(504, "server_error"),
    **dict.fromkeys(
        (
            *("bad-event", "bad-tag", "bad-signature", "bad-hash", "bad-version", "bad-manifest", "bad-recipe"),
            *("bad-data", "bad-task", "bad-update", "bad-plan", "bad-frame", "bad-peer", "bad-ciphertext"),
            *("bad-invoice", "bad-zap", "bad-quorum", "withheld", "not-carried", "link-lost", "relay-refused"),
            *("node-failed", "worker-failed", "over-memory"),
        ),
        _OTHERS,
    ),
}
"""By an error's code: all of `nodewire.errors.TABLE`."""


class Refusal(Exception):
    """What the gateway itself refuses, as it is told."""

    def __init__(self, status: int, type_: str, message: str, *, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.type, self.message, self.param, self.code = status, type_, message, param, code


def bad_request(message: str, param: str | None = None, code: str | None = None) -> Refusal:
    return Refusal(400, "invalid_request_error", message, param=param, code=code)


def unsupported(param: str, message: str) -> Refusal:
    """A field that cannot be honoured."""
    return bad_request(message, param, "unsupported_parameter")


def error_body(error: NodewireError | Refusal) -> tuple[int, dict[str, Any]]:
    """Its status, and the body that says it."""
    if isinstance(error, Refusal):
        said = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
        return error.status, {"error": said}
    if isinstance(error, TooFast | TooMany):
        said = {"message": str(error), "type": "requests", "param": None, "code": "rate_limit_exceeded"}
        return 429, {"error": said}
    if isinstance(error, OverBudget) and error.field == "api_key":  # else it is the gateway's own limits that are tight
        said = {"message": str(error), "type": "insufficient_quota", "param": None, "code": "insufficient_quota"}
        return 429, {"error": said}
    shape = SHAPES.get(error.code, SHAPES["error"])
    said = {
        "message": str(error),
        "type": shape.type,
        "param": error.field if shape.param else None,
        "code": shape.code or error.code,
    }
    return shape.status, {"error": said}


def document(error: NodewireError | Refusal) -> bytes:
    """The JSON that tells it."""
    return orjson.dumps(error_body(error)[1])


def response(error: NodewireError | Refusal) -> web.Response:
    """The answer. Its headers say whether a client does well to ask again (`x-should-retry` is what OpenAI's obey)."""
    status, body = error_body(error)
    retry = isinstance(error, NodewireError) and error.retryable
    headers = {"x-should-retry": "true" if retry else "false"}
    if isinstance(error, TooFast):
        headers["Retry-After"] = str(max(1, round(error.wait_s + 0.5)))
    elif retry and status in (429, 503):
        headers["Retry-After"] = str(RETRY_S)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json", headers=headers)
