"""The single-process reference: the whole model in one loop, no tasks, no frames. What the split must equal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from nodewire.errors import BadInput
from nodewire.llm.config import read_config
from nodewire.llm.layers import Rotary, decode_layer, layer_of, layer_shapes, rms_norm
from nodewire.llm.loading import DTYPES, load
from nodewire.llm.programs import EMBED, HEAD, NORM
from nodewire.llm.sampling import Sampler
from nodewire.llm.split import read_tokenizer, stored_dtype, weight_files
from nodewire.llm.text import Growing
from nodewire.llm.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    ids: tuple[int, ...]
    end: bool
    reason: str


@torch.inference_mode()
def generate(
    folder: Path, prompt: str, *, max_tokens: int = 128, compute: str = "float32", **params: Any
) -> Iterator[Piece]:
    """Continue `prompt` with the Hugging Face model in `folder`, token by token.

    Raises:
        BadInput, BadTask: the folder is not a served model, or the prompt does not fit its context.
    """
    config = read_config(folder)
    tokenizer = Tokenizer(read_tokenizer(folder))
    files = weight_files(folder)
    shapes: dict[str, tuple[int, ...]] = {EMBED: (config.vocab, config.hidden), NORM: (config.hidden,)}
    if not config.tied:
        shapes[HEAD] = (config.vocab, config.hidden)
    for i in range(config.layers):
        shapes |= layer_shapes(config, i)
    weights = load(files, shapes, stored=stored_dtype(files, EMBED), compute=compute, exact=False)
    layers = [layer_of(weights, i) for i in range(config.layers)]
    dtype = DTYPES[compute]
    rotary = Rotary(config, config.context, dtype)
    cache = torch.zeros(2, config.layers, config.kv_heads, config.context, config.head_dim, dtype=dtype)
    ids = tokenizer.encode(prompt)
    if len(ids) >= config.context:
        raise BadInput("prompt", f"{len(ids)} tokens; the context has {config.context} with the answer")
    text = Growing(tokenizer, config.eos, {**params, "max_tokens": max_tokens}, config.context - len(ids))
    sampler = Sampler(params.get("temperature", 0.0), params.get("top_p", 1.0), params.get("seed", 0))
    start, reason = 0, ""
    while not reason:
        x = F.embedding(torch.tensor(ids), weights[EMBED])
        for i, layer in enumerate(layers):
            x = decode_layer(layer, config, x, rotary, cache[0, i], cache[1, i], start)
        start += len(ids)
        logits = F.linear(rms_norm(x[-1:], weights[NORM], config.eps), weights.get(HEAD, weights[EMBED]))[0]
        token = sampler(logits)
        piece, reason = text.add(token)
        yield Piece(piece, (token,), bool(reason), reason)
        ids = [token]
