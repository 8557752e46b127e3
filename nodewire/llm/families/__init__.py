"""The model families that nodewire decodes: each is one file that reads a config.json and names the tensors.

A new family adds its file, its entry below and its name to `DecoderConfig.family`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from nodewire.errors import BadInput, BadTask, TooLarge
from nodewire.llm.config import DecoderConfig
from nodewire.llm.families import llama

MAX_CONFIG_BYTES = 1_048_576

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class LayerNames:
    """One layer's tensors by what they do; `q`, `k` and `v` are stacked when loaded, and so are `gate` and `up`."""

    attention_norm: str
    q: str
    k: str
    v: str
    o: str
    mlp_norm: str
    gate: str
    up: str
    down: str


class Family(Protocol):
    """What an adapter file offers. Tensor names are those of the checkpoint."""

    ARCHITECTURE: str
    EMBEDDING: str
    FINAL_NORM: str
    HEAD: str

    def parse(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a DecoderConfig, unchecked. Raises BadTask for a variant that the layers do not compute."""

    def layer_names(self, layer: int) -> dict[str, str]:
        """The fields of LayerNames."""


FAMILIES: dict[str, Family] = {"llama": llama}


def family_of(config: DecoderConfig) -> Family:
    return FAMILIES[config.family]


def parse_config(data: bytes, generation: bytes | None = None) -> DecoderConfig:
    """The decoder that a config.json describes; a generation_config.json beside it may name further end tokens.

    Raises:
        TooLarge: longer than 1 MiB.
        BadTask: no known family, or a field missing, out of bounds or not supported (it is named).
    """
    config = _json(data, "config.json")
    architectures = config.get("architectures")
    for family in FAMILIES.values():
        if architectures == [family.ARCHITECTURE]:
            fields = family.parse(config)
            break
    else:
        known = ", ".join(family.ARCHITECTURE for family in FAMILIES.values())
        raise BadTask("architectures", f"{str(architectures)[:80]} is not one of {known}")
    ends = _json(generation, "generation_config.json").get("eos_token_id") if generation is not None else None
    if ends is None:
        ends = config.get("eos_token_id")
    fields["eos_token_id"] = [] if ends is None else ends if isinstance(ends, list) else [ends]
    return DecoderConfig.from_document(fields)


def layer_names(config: DecoderConfig, layer: int) -> LayerNames:
    return LayerNames(**family_of(config).layer_names(layer))


def layer_shapes(config: DecoderConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer: {checkpoint name: shape}, projections as [out, in]."""
    names = layer_names(config, layer)
    width, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    return {
        names.attention_norm: (width,),
        names.q: (queries, width),
        names.k: (keys, width),
        names.v: (keys, width),
        names.o: (width, queries),
        names.mlp_norm: (width,),
        names.gate: (inner, width),
        names.up: (inner, width),
        names.down: (width, inner),
    }


def stage_shapes(config: DecoderConfig, first: int, last: int) -> dict[str, tuple[int, ...]]:
    """The tensors of layers [first, last)."""
    return {name: shape for layer in range(first, last) for name, shape in layer_shapes(config, layer).items()}


def driver_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of embedding, final norm and, unless tied to the embedding, head."""
    family = family_of(config)
    table = (config.vocab_size, config.hidden_size)
    shapes: dict[str, tuple[int, ...]] = {family.EMBEDDING: table, family.FINAL_NORM: (config.hidden_size,)}
    if not config.tie_word_embeddings:
        shapes[family.HEAD] = table
    return shapes


def _json(data: bytes, name: str) -> dict[str, Any]:
    if len(data) > MAX_CONFIG_BYTES:
        raise TooLarge(name, f"{len(data)} bytes, at most {MAX_CONFIG_BYTES}")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInput(name, "not JSON") from error
    if not isinstance(document, dict):
        raise BadInput(name, "not an object")
    return document
