"""/v1/embeddings: the vectors of texts, as numbers or in base64 (which is what OpenAI's own client asks for)."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from nodewire.gateway.openai.refusals import bad_request, unsupported
from nodewire.gateway.openai.replies import Usage

if TYPE_CHECKING:
    import numpy as np

    from nodewire.gateway.config import KeyConfig, ModelConfig
    from nodewire.gateway.counters import Figures
    from nodewire.gateway.desk import Desk
    from nodewire.gateway.openai.fields import Body
    from nodewire.gateway.port import Offer

OWN = frozenset({"input", "encoding_format"})
MAX_TEXTS = 1_024


async def embed(
    desk: Desk, figures: Figures, key: KeyConfig, origin: str, model: ModelConfig, offer: Offer, body: Body
) -> web.Response:
    """Raises NodewireError, Refusal."""
    texts, in_base64 = _texts(body), _in_base64(body)
    async with desk.answering(key, origin, model, offer, len(texts), lambda order: order.embed(texts)) as answer:
        found = await anext(answer.items())
        answer.whole()  # which it is when it is settled
        usage = Usage(found.tokens, 0, answer.order.cost_msat, answer.order.requests)
    figures.count_tokens(model.label, usage.prompt, 0)
    data = [
        {"object": "embedding", "index": number, "embedding": _written(row, in_base64=in_base64)}
        for number, row in enumerate(found.rows)
    ]
    said = {k: v for k, v in usage.document().items() if not k.startswith(("completion", "prompt_tokens_"))}
    document = {"object": "list", "data": data, "model": model.name, "usage": said}
    return web.Response(body=orjson.dumps(document), content_type="application/json")


def _texts(body: Body) -> list[str]:
    said = body.get("input")
    texts = [said] if isinstance(said, str) else said
    if not isinstance(texts, list) or not texts or len(texts) > MAX_TEXTS:
        raise bad_request(f"input: neither a string nor a list of 1 to {MAX_TEXTS}", "input")
    if not all(isinstance(text, str) for text in texts):
        raise unsupported("input", "input: not strings; token ids are of other tokenizers than this model's")
    if not all(text.strip() for text in texts):
        raise bad_request("input: one of the texts is empty", "input")
    return texts


def _in_base64(body: Body) -> bool:
    form = body.get("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise bad_request("encoding_format: neither float nor base64", "encoding_format")
    return bool(form == "base64")


def _written(row: np.ndarray, *, in_base64: bool) -> Any:
    return base64.b64encode(row.astype("<f4").tobytes()).decode() if in_base64 else row.tolist()
