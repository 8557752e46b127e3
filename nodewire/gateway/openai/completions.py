"""/v1/completions and /v1/chat/completions: text that is bought, told whole or as it comes (server-sent events)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from nodewire.customer.api import MAX_PROMPT_BYTES
from nodewire.errors import BadInput, NodewireError, OverBudget, TooLarge, Unsupported
from nodewire.gateway.openai import logprobs
from nodewire.gateway.openai.refusals import HEADERS, Refusal, bad_request, error_body
from nodewire.gateway.openai.replies import Calls, Finish, Reply, Usage
from nodewire.gateway.openai.toolcalls import ToolCalls
from nodewire.net.connection_limits import origin_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodewire.customer.tokens.token_chunk import Piece
    from nodewire.gateway.config import KeyConfig, ModelConfig
    from nodewire.gateway.counters import Figures
    from nodewire.gateway.desk import Answer, Desk
    from nodewire.gateway.openai.fields import StreamOptions
    from nodewire.gateway.port import Offer

_FINISHES: dict[str, Finish] = {"eos": "stop", "stop": "stop", "length": "length"}
READ_S = 30.0
"""In which a client must have read what it was told before."""
_DONE = b"data: [DONE]\n\n"
_PROMPT = ("prompt", "text")
_DRIVERS = frozenset({"logit_bias", "json_schema", "json_object"})
"""Parameters that only a driver can tell to be wrong."""
_SPECIAL = 16
"""Tokens that a tokenizer may add to a prompt; it makes no more than one of a byte."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One generation as it was asked for. `tools`: its text may hold calls of tools."""

    key: KeyConfig
    model: ModelConfig
    offer: Offer
    prompt: str
    params: dict[str, Any]
    stream: StreamOptions
    chat: bool
    tools: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    """By parameter of the job, the request's field that said it."""

    @property
    def units(self) -> int:
        """The most chunks that it can be."""
        prompt = min(len(self.prompt.encode()) + _SPECIAL, self.offer.context)
        return -(-prompt // self.offer.chunk) - (-int(self.params["max_tokens"]) // self.offer.chunk) + 1


@dataclass(slots=True)
class _Course:
    """What has come of a generation."""

    calls: ToolCalls | None
    chat: bool
    usage: Usage = field(default_factory=Usage)
    reason: str = ""
    pieces: list[Piece] = field(default_factory=list)
    """With log-probabilities, not told yet."""
    _offset: int = 0

    def feed(self, piece: Piece) -> tuple[str, Calls]:
        """The text, and the calls, that are certain with it."""
        if piece.likely:
            self.pieces.append(piece)
        if not self.usage.completion:
            self.usage.prompt = piece.position
        self.usage.completion += len(piece.ids)
        if piece.end:
            self.reason = piece.reason
        if self.calls is None:
            return piece.text, []
        text, calls = self.calls.push(piece.text)
        return text + (self.calls.end() if piece.end else ""), calls

    def likelihoods(self) -> logprobs.Logprobs:
        """Of the tokens that came since it was asked for; None if there were none."""
        pieces, self.pieces = self.pieces, []
        if self.chat:
            return logprobs.of_chat(pieces)
        at, self._offset = self._offset, self._offset + logprobs.length(pieces)
        return logprobs.of_completion(pieces, at)

    @property
    def finish(self) -> Finish:
        """A budget that ends it is a length, too: what came is paid, and whole as far as it goes."""
        return "tool_calls" if self.calls is not None and self.calls.found else _FINISHES.get(self.reason, "length")


async def generate(request: web.Request, desk: Desk, figures: Figures, wanted: CompletionRequest) -> web.StreamResponse:
    """Buy it and tell it. Raises NodewireError, Refusal: before anything was told."""
    if (size := len(wanted.prompt.encode())) > MAX_PROMPT_BYTES:
        raise too_long("messages" if wanted.chat else "prompt", f"{size} bytes, at most {MAX_PROMPT_BYTES}")
    began_s = time.perf_counter()
    course = _Course(ToolCalls() if wanted.tools else None, wanted.chat)
    reply = Reply(wanted.model.name, wanted.chat)

    def seen(piece: Piece) -> tuple[str, Calls]:
        if not course.usage.completion:
            figures.began(wanted.model.label, int((time.perf_counter() - began_s) * 1e6))
        return course.feed(piece)

    async with desk.answering(
        wanted.key,
        origin_of(request.remote or ""),
        wanted.model,
        wanted.offer,
        wanted.units,
        lambda order: order.generate(wanted.prompt, wanted.params),
    ) as answer:
        try:
            if wanted.stream.wanted:
                return await _EventStream(request, reply, course, answer, wanted).run(seen)
            text = ""
            try:
                async for piece in answer.items():
                    text += seen(piece)[0]
                    if piece.end:
                        answer.whole()
            except OverBudget:
                if not course.usage.completion:
                    raise
            except NodewireError as error:
                if not course.reason:  # else all of it has come, and only its settling went wrong
                    raise _asked_for(error, wanted) from error
            text += course.calls.end() if course.calls is not None else ""
            _count(course.usage, answer)
            calls = course.calls.found if course.calls else []
            whole = reply.whole(text, calls, course.finish, course.usage, course.likelihoods())
            return web.Response(body=orjson.dumps(whole), content_type="application/json")
        finally:
            figures.count_tokens(wanted.model.label, course.usage.prompt, course.usage.completion)


class _EventStream:
    """An answer as server-sent events: the first goes out when something has come.

    So what fails before is an error with a status.
    """

    def __init__(
        self, request: web.Request, reply: Reply, course: _Course, answer: Answer[Piece], wanted: CompletionRequest
    ) -> None:
        self._request, self._reply, self._course, self._answer = request, reply, course, answer
        self._wanted = wanted
        self._response: web.StreamResponse | None = None
        self._has_ended = False

    async def run(self, seen: Callable[[Piece], tuple[str, Calls]]) -> web.StreamResponse:
        try:
            async for piece in self._answer.items():
                await self._tell(*seen(piece))
                if piece.end:
                    self._answer.whole()
                    await self._end()
                    if not self._wanted.stream.usage:
                        break  # it is settled without anybody waiting
        except OverBudget:
            if not self._course.usage.completion:
                raise
            if not self._has_ended:
                await self._end(self._course.calls.end() if self._course.calls is not None else "")
        except NodewireError as error:
            if self._response is None:
                raise _asked_for(error, self._wanted) from error
            if not self._has_ended:
                await self._write(b"data: " + orjson.dumps(error_body(_asked_for(error, self._wanted))[1]) + b"\n\n")
                return self._response
        return await self._close()

    async def _tell(self, text: str, calls: Calls) -> None:
        """What is certain with the newest piece."""
        likelihoods = self._course.likelihoods()
        if text or likelihoods:
            await self._say(self._reply.piece(text, likelihoods))
        if calls:
            await self._say(self._reply.calls(calls))

    async def _end(self, left: str = "") -> None:
        """Say why no more text comes, after what is `left` of it."""
        self._has_ended = True
        if left:
            await self._say(self._reply.piece(left))
        await self._say(self._reply.closing(self._course.finish))

    async def _close(self) -> web.StreamResponse:
        """The stream with its end: what was used, where that was asked for, and the last mark."""
        if self._wanted.stream.usage:
            _count(self._course.usage, self._answer)
            await self._say(self._reply.usage(self._course.usage))
        await self._write(_DONE)
        assert self._response is not None
        await self._response.write_eof()
        return self._response

    async def _say(self, document: dict[str, Any]) -> None:
        if self._wanted.stream.usage and "usage" not in document:
            document = {**document, "usage": None}
        await self._write(b"data: " + orjson.dumps(document) + b"\n\n")

    async def _write(self, data: bytes) -> None:
        if self._response is None:
            headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
            self._response = web.StreamResponse(headers={**headers, "X-Accel-Buffering": "no"})
            self._response.headers.update(self._request[HEADERS])
            self._response.force_close()
            await self._response.prepare(self._request)
            if (opening := self._reply.opening()) is not None:
                await self._say(opening)
        connection = self._request.transport
        if connection is None:
            raise ConnectionResetError("the client has gone")
        late = asyncio.get_running_loop().call_later(READ_S, connection.abort)  # which cancels this
        try:
            await self._response.write(data)
        finally:
            late.cancel()


def _count(usage: Usage, answer: Answer[Piece]) -> None:
    usage.cost_msat, usage.requests = answer.order.cost_msat, answer.order.requests
    usage.cached = answer.order.cached_tokens


def too_long(field: str, reason: str) -> Refusal:
    """As OpenAI's clients know it."""
    return bad_request(f"{field}: too long: {reason}", field, "context_length_exceeded")


def _asked_for(error: NodewireError, wanted: CompletionRequest) -> NodewireError | Refusal:
    """What the driver refuses is the client's: a parameter, if its word for that has come, or else the prompt."""
    if error.code not in (BadInput.code, TooLarge.code, Unsupported.code):
        return error
    if error.field in wanted.params:
        field = wanted.names.get(error.field, error.field)
        return bad_request(f"{field}: refused ({error.reason})", field, error.code)
    prompt = "messages" if wanted.chat else "prompt"
    if isinstance(error, TooLarge) and error.field in (*_PROMPT, "provider"):
        return too_long(prompt, f"the model's context is {wanted.offer.context} tokens ({error})")
    if error.field in _PROMPT or (error.field == "provider" and not _DRIVERS & wanted.params.keys()):
        return bad_request(f"{prompt}: refused ({error})", prompt, error.code)
    return bad_request(str(error), None, error.code) if error.field in ("provider", "params") else error
