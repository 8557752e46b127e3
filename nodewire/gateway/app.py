"""The HTTP application: who may ask, what for, and how errors are told."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import hdrs, web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from nodewire.errors import NodewireError, NotFound, TooLarge, Unsupported
from nodewire.gateway.config import ANY, MAX_CALLED_CHARS, GatewayConfig, KeyConfig, ModelConfig
from nodewire.gateway.openai import completions as generating
from nodewire.gateway.openai import embeddings as embedding
from nodewire.gateway.openai import fields, messages
from nodewire.gateway.openai.refusals import HEADERS, Refusal, bad_request, response, unsupported
from nodewire.gateway.openai.response_format import FORMAT
from nodewire.net import http_server
from nodewire.net.connection_limits import origin_of
from nodewire.net.loopback import is_called_so

if TYPE_CHECKING:
    from nodewire.chat.renderer import Renderer
    from nodewire.gateway.counters import Figures
    from nodewire.gateway.desk import Desk
    from nodewire.gateway.keys import Keys
    from nodewire.gateway.openai.fields import Body, RequestFields
    from nodewire.gateway.port import Buyer, Offer
    from nodewire.metrics.endpoint import Scrapes
    from nodewire.protocol.model.chat_template import ChatTemplate

BODY_S = 30.0
"""In which a request's body must have come."""
COMPLETION_TOKENS = 16
"""OpenAI's default for /v1/completions."""
_KEY = web.RequestKey("key", KeyConfig)
log = logging.getLogger("nodewire.gateway")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gateway:
    """The routes. `templates` are the configured ones, by model."""

    def __init__(
        self,
        config: GatewayConfig,
        buyer: Buyer,
        desk: Desk,
        keys: Keys,
        figures: Figures,
        renderer: Renderer,
        templates: dict[str, ChatTemplate],
        scrapes: Scrapes,
    ) -> None:
        self._config, self._buyer, self._desk, self._keys, self._figures = config, buyer, desk, keys, figures
        self._renderer, self._templates, self._scrapes = renderer, templates, scrapes
        self._models = {model.name: model for model in config.models}
        self._began_s = int(time.time())
        self._apart_by = secrets.token_bytes(16)

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._around], client_max_size=self._config.max_body)
        app.add_routes(
            [
                web.get("/health", self.health),
                web.get("/metrics", self.metrics),
                web.get("/v1/models", self.models),
                web.get("/v1/models/{name:.+}", self.model),
                web.post("/v1/completions", self.completions),
                web.post("/v1/chat/completions", self.chat),
                web.post("/v1/embeddings", self.embeddings),
            ]
        )
        return app

    # What is asked.

    async def health(self, request: web.Request) -> web.Response:
        """Whether a job could be bought now: the committee certifies epochs that reach this machine."""
        try:
            epoch = await self._buyer.epoch()
        except NodewireError as error:
            return _json({"status": "unavailable", "error": error.as_dict()}, status=503)
        return _json({"status": "ok", "epoch": epoch, "in_flight": self._desk.in_flight})

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=await self._scrapes.text(), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def models(self, request: web.Request) -> web.Response:
        listed = [model for model in self._config.models if model.name != ANY]
        if (any_model := self._models.get(ANY)) is not None:
            listed += [any_model.called(name) for name in self._buyer.names if name not in self._models]
        allowed = [model for model in listed if _may_use(request[_KEY], model)]
        return _json({"object": "list", "data": await asyncio.gather(*map(self._described, allowed))})

    async def model(self, request: web.Request) -> web.Response:
        return _json(await self._described(self._named(request.match_info["name"], request[_KEY])))

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        asked = fields.asked(body, frozenset({"prompt"}))
        told = fields.logprobs_of_completion(body)
        model, offer = await self._admitted(request, asked, "generate")
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1:
            prompt = prompt[0]
        if not isinstance(prompt, str) or not prompt:
            raise bad_request("prompt: one text is needed; neither several nor token ids can be taken", "prompt")
        params = self._within(model, offer, {"max_tokens": COMPLETION_TOKENS, **asked.params, **told})
        return await self._generate(request, model, offer, prompt, params, asked, chat=False)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        asked = fields.asked(body, frozenset({"messages", "tools", "tool_choice", "top_logprobs", messages.VARIABLES}))
        told = fields.logprobs_of_chat(body)
        said, variables = messages.messages(body), messages.variables(body)
        model, offer = await self._admitted(request, asked, "generate")
        template = self._template(model, offer)
        tools = messages.tools(body, template)
        prompt = await self._rendered(template, said, tools, variables)
        if tools and FORMAT in asked.names.values():
            raise unsupported(FORMAT, f"{FORMAT}: a text that is JSON has no calls of tools; leave out one of the two")
        params = {"max_tokens": min(model.max_tokens, offer.context or model.max_tokens), **asked.params, **told}
        calls = bool(tools) and messages.calls_are_parsed(template)
        params = {**self._within(model, offer, params), "special_tokens": False}
        return await self._generate(request, model, offer, prompt, params, asked, chat=True, tools=calls)

    async def embeddings(self, request: web.Request) -> web.Response:
        body = await self._body(request)
        asked = fields.asked(body, embedding.OWN, generates=False)
        model, offer = await self._admitted(request, asked, "embed")
        return await embedding.embed(
            self._desk, self._figures, request[_KEY], origin_of(request.remote or ""), model, offer, body
        )

    # How it is understood.

    async def _rendered(self, template: ChatTemplate, *asked: Any) -> str:
        try:
            return await self._renderer.render(template, *asked)
        except TooLarge as error:
            if error.field != "messages":
                raise
            raise generating.too_long("messages", str(error)) from error

    async def _generate(
        self,
        request: web.Request,
        model: ModelConfig,
        offer: Offer,
        prompt: str,
        params: dict[str, Any],
        asked: RequestFields,
        *,
        chat: bool,
        tools: bool = False,
    ) -> web.StreamResponse:
        names = {"logprobs": "top_logprobs" if chat else "logprobs", **asked.names}
        params = {**params, **self._apart(request[_KEY])}
        wanted = generating.CompletionRequest(
            request[_KEY], model, offer, prompt, params, asked.stream, chat, tools, names
        )
        return await generating.generate(request, self._desk, self._figures, wanted)

    def _apart(self, key: KeyConfig) -> dict[str, str]:
        """A mark by which providers keep the prompts of API keys apart: to them all are the one customer's."""
        if not self._config.keys:
            return {}
        return {"apart": hmac.digest(self._apart_by, key.name.encode(), "sha256").hex()[:32]}

    async def _admitted(self, request: web.Request, asked: RequestFields, mode: str) -> tuple[ModelConfig, Offer]:
        """The model that is asked for, of this mode; the request counts from here on."""
        key = request[_KEY]
        model = self._named(asked.model, key)
        self._desk.admit(key)
        http_server.known(request)
        try:
            offer = await self._buyer.offer(model)
        except NotFound as error:
            if error.field != "model":
                raise
            raise _unknown(model.name, str(error)) from error
        if offer.mode != mode:
            raise bad_request(f"model: {model.name} is one to {offer.mode}, not to {mode}", "model")
        return model, offer

    def _named(self, name: str, key: KeyConfig) -> ModelConfig:
        model, any_model = self._models.get(name), self._models.get(ANY)
        if model is None and any_model is not None and len(name) <= MAX_CALLED_CHARS:
            model = any_model.called(name)
        if model is None or name == ANY or not _may_use(key, model):
            raise _unknown(name)
        return model

    def _within(self, model: ModelConfig, offer: Offer, params: dict[str, Any]) -> dict[str, Any]:
        most = min(model.max_tokens, offer.context or model.max_tokens)
        if params["max_tokens"] > most:
            raise bad_request(f"max_tokens: {params['max_tokens']}, this model makes at most {most}", "max_tokens")
        return params

    def _template(self, model: ModelConfig, offer: Offer) -> ChatTemplate:
        own = self._templates.get(model.label)
        if own is not None:
            return own.model_copy(update={"tokens": offer.chat.tokens}) if offer.chat is not None else own
        if offer.chat is None:
            raise Unsupported("model", f"{model.name} has no chat template: use /v1/completions, or configure one")
        return offer.chat

    async def _body(self, request: web.Request) -> Body:
        """The request's JSON object. A page of another origin cannot send this type without asking first (CORS)."""
        if request.content_type != "application/json":
            raise bad_request(f"Content-Type: {request.content_type[:64]} is not application/json")
        try:
            async with asyncio.timeout(BODY_S):
                data = await request.read()
            body = orjson.loads(data)
            orjson.dumps(body)  # which goes less deep: what is nested deeper cannot be handed on
        except TimeoutError as error:
            raise Refusal(408, "invalid_request_error", "the body has not come in time") from error
        except orjson.JSONDecodeError as error:
            raise bad_request(f"the body is not JSON: {str(error)[:120]}") from error
        except orjson.JSONEncodeError as error:
            raise bad_request("the body is nested too deeply") from error
        if not isinstance(body, dict):
            raise bad_request("the body is not a JSON object")
        return body

    async def _described(self, model: ModelConfig) -> dict[str, Any]:
        about: dict[str, Any] = {"manifest": model.manifest}
        try:
            offer = await self._buyer.offer(model)
            about |= {"manifest": offer.address, "digest": offer.digest, "mode": offer.mode, "context": offer.context}
            about["chat"] = offer.chat is not None or model.label in self._templates
        except NodewireError as error:
            about["error"] = error.as_dict()
        author = about["manifest"].split(":", 2)[1] if about["manifest"] else ""
        said = {"id": model.name, "object": "model", "created": self._began_s, "owned_by": author}
        return {**said, "nodewire": about}

    # Around it.

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        began_s = time.perf_counter()
        request[HEADERS] = headers = {"x-request-id": f"req_{secrets.token_hex(12)}"}
        try:
            self._check_host(request)
            self._check_origin(request, headers)
            if request.method == hdrs.METH_OPTIONS and hdrs.ORIGIN in request.headers:
                answer: web.StreamResponse = web.Response(status=204)
            else:
                if request.path != "/health":
                    request[_KEY] = self._owner(request)
                answer = await handler(request)
        except (NodewireError, Refusal) as error:
            answer = response(error)
        except web.HTTPException as error:
            answer = response(_refusal(error, request))
        except (asyncio.CancelledError, ConnectionError):
            self._figures.answered(_endpoint(request), 499, _us(began_s))
            raise
        except Exception:
            log.exception("a fault of the gateway's own")
            answer = response(NodewireError("gateway", "a fault of its own; its log says more"))
        if not answer.prepared:
            answer.headers.update(headers)
            answer.force_close()  # a connection has its time: the next request begins with all of it
        self._figures.answered(_endpoint(request), answer.status, _us(began_s))
        return answer

    def _check_host(self, request: web.Request) -> None:
        """Without keys it is this machine's alone, whatever name a page's host takes on."""
        if not self._config.keys and not is_called_so(request.headers.get(hdrs.HOST)):
            message = "without keys it answers to localhost and 127.0.0.1 alone"
            raise Refusal(403, "permission_error", message, code="host")

    def _check_origin(self, request: web.Request, headers: dict[str, str]) -> None:
        """A page in a browser may ask only if its origin is configured, whatever the browser itself would allow."""
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None:
            return
        if origin not in self._config.cors:
            raise Refusal(403, "permission_error", "pages of this origin may not ask here", code="origin")
        headers |= {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Headers": "Authorization, Content-Type",
            "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
            "Vary": "Origin",
        }

    def _owner(self, request: web.Request) -> KeyConfig:
        key = self._keys.find(request.headers.get(hdrs.AUTHORIZATION, ""))
        if key is None:
            message = "Incorrect API key provided, or none: Authorization: Bearer YOUR_KEY"
            raise Refusal(401, "invalid_request_error", message, code="invalid_api_key")
        return key


def _may_use(key: KeyConfig, model: ModelConfig) -> bool:
    return not key.models or model.name in key.models or model.label in key.models


def _unknown(name: str, why: str = "") -> Refusal:
    message = f"The model {name[:128]!r} does not exist or you do not have access to it." + (f" {why}" if why else "")
    return Refusal(404, "invalid_request_error", message, param="model", code="model_not_found")


def _refusal(error: web.HTTPException, request: web.Request) -> Refusal:
    """An error of aiohttp's own: no such path or method, a body that is too large."""
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return Refusal(413, "invalid_request_error", "the body is too large", code="too-large")
    where = f"{request.method} {request.path[:128]}"
    return Refusal(error.status, "invalid_request_error", f"{error.reason}: {where}", code="unknown_url")


def _endpoint(request: web.Request) -> str:
    """The route, which is one of few; a path that is none is the client's own words."""
    resource = request.match_info.route.resource
    return "other" if resource is None else resource.canonical


def _us(began_s: float) -> int:
    return int((time.perf_counter() - began_s) * 1e6)


def _json(document: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(document), content_type="application/json")
