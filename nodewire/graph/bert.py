"""The BERT family as a module to trace: ids and mask in, sentence embeddings out. `transformers` builds the layers.

Needs the extra `nodewire[register]`; only registration imports it, never a worker that serves a task.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Literal

import torch

from nodewire.errors import BadConfig, BadInput
from nodewire.graph.encoder_directory import EncoderDirectory
from nodewire.graph.families.building import plain, taken
from nodewire.graph.format import Input

BATCH, SEQUENCE = "batch", "sequence"
IDS, MASK = "input_ids", "attention_mask"
INPUTS = (
    Input(IDS, torch.int64, (BATCH, SEQUENCE)),
    Input(MASK, torch.int64, (BATCH, SEQUENCE)),
)


class SentenceEncoder(torch.nn.Module):
    """input_ids, attention_mask int64 [b, s] -> float32 [b, h]: pooled over the mask, L2-normalized if asked.

    Token types are zero. Positions and types are made from the mask, so that only the word embedding needs the ids.
    """

    def __init__(self, model: torch.nn.Module, pooling: Literal["mean", "cls"], normalized: bool) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling
        self.normalized = normalized

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(attention_mask.shape[1], device=attention_mask.device)[None]
        hidden = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=torch.zeros_like(attention_mask),
            position_ids=positions,
        ).last_hidden_state
        return pool(hidden, attention_mask, self.pooling, self.normalized)


def pool(
    hidden: torch.Tensor, attention_mask: torch.Tensor, pooling: Literal["mean", "cls"], normalized: bool
) -> torch.Tensor:
    """[b, s, h] -> [b, h], as sentence-transformers' Pooling and Normalize layers do."""
    if pooling == "cls":
        pooled = hidden[:, 0]
    else:
        mask = attention_mask[..., None].expand(hidden.shape).to(hidden.dtype)
        pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
    return torch.nn.functional.normalize(pooled, p=2.0, dim=1) if normalized else pooled


def config(directory: EncoderDirectory) -> Any:
    """The directory's configuration as `transformers` has it.

    Raises:
        BadConfig: `transformers` is not installed.
        BadInput: the model is not of this family, or `transformers` does not take its configuration.
    """
    kind = directory.config.get("model_type")
    if kind != "bert":
        raise BadInput("model_type", f"{str(kind)[:40]!r} is not supported; bert is")
    try:
        from transformers import BertConfig
    except ImportError as error:
        raise BadConfig("transformers", "not installed: pip install nodewire[register]") from error
    with taken():
        return BertConfig(**{k: v for k, v in plain(directory.config).items() if k not in ("torch_dtype", "dtype")})


def build(directory: EncoderDirectory) -> SentenceEncoder:
    """The module without weights (on the meta device), in float32. Raises as `config`."""
    settings = config(directory)
    settings._attn_implementation = "sdpa"
    from transformers import BertModel

    with taken(), torch.device("meta"):
        model = BertModel(settings, add_pooling_layer=False)
    return SentenceEncoder(model, directory.pooling, directory.normalized).eval()


def weight_name(traced: str, stored: Container[str]) -> str:
    """The name in model.safetensors of a traced weight: bare, or under `bert.` in a checkpoint with a head.

    Raises:
        BadInput: the file lacks it.
    """
    bare = traced.removeprefix("model.")
    for name in (bare, f"bert.{bare}"):
        if name in stored:
            return name
    raise BadInput("model.safetensors", f"lacks {bare[:80]}")
