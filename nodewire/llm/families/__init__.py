"""The model families that nodewire decodes: each is one file that reads a config.json and names the tensors.

A new family adds its file, its entry below and its name to `DecoderConfig.family`. What its layers compute is said by
the other fields of DecoderConfig, so a family that computes what no field says needs one there, and in the layers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from nodewire.errors import BadInput, BadTask, TooLarge
from nodewire.llm.config import QUANTIZED, DecoderConfig
from nodewire.llm.families import (
    compressed,
    gemma,
    gemma2,
    gemma3,
    glm4_moe,
    gpt_oss,
    llama,
    meta,
    mistral,
    mixtral,
    naming,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
)
from nodewire.llm.families.fields import Fields
from nodewire.llm.families.naming import Piece, Pieces
from nodewire.llm.parameters import BOTH, Ends, of_ends

MAX_CONFIG_BYTES = 1_048_576


class Family(Protocol):
    """What an adapter file offers. Tensor names are those of the checkpoint."""

    ARCHITECTURE: str

    def parse(self, fields: Fields) -> dict[str, Any]:
        """The fields of a DecoderConfig, unchecked. Raises BadTask for a variant that the layers do not compute."""

    def pieces(self, config: DecoderConfig, layer: int) -> Pieces:
        """What makes up each parameter of a layer (nodewire.llm.parameters)."""


FAMILIES: dict[str, Family] = {
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "phi3": phi3,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "gpt_oss": gpt_oss,
    "glm4_moe": glm4_moe,
}
"""Those of Hugging Face's layout; Meta's own (`meta`) names no architecture."""
ARCHITECTURES = frozenset(family.ARCHITECTURE for family in FAMILIES.values())


def parse_config(data: bytes, generation: bytes | None = None) -> DecoderConfig:
    """The decoder that a config.json describes; a generation_config.json beside it may name further end tokens.

    Raises:
        TooLarge: longer than 1 MiB.
        BadTask: no known family, or a field missing, unknown, out of bounds or not supported (it is named).
    """
    ends = json_object(generation, "generation_config.json").get("eos_token_id") if generation is not None else None
    return parse_document(json_object(data, "config.json"), ends)


def parse_document(config: Mapping[str, Any], ends: Any = None) -> DecoderConfig:
    """As `parse_config`, of an object; `ends` are tokens that end a text, in place of those that it names."""
    architectures = config.get("architectures")
    name = next((name for name, family in FAMILIES.items() if architectures == [family.ARCHITECTURE]), None)
    if name is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise BadTask("architectures", f"{str(architectures)[:80]} is not one of {known}")
    blocks = compressed.said_of(config)
    fields = Fields(config if blocks is None else {**config, "quantization_config": None})
    document = FAMILIES[name].parse(fields)
    if "quantization_config" in fields:
        raise BadTask("quantization_config", f"only of the method {compressed.METHOD}, or mxfp4 of gpt-oss")
    fields.end()
    if ends is None:
        ends = config.get("eos_token_id")
    document |= {"family": name, "eos_token_id": [] if ends is None else ends if isinstance(ends, list) else [ends]}
    found = DecoderConfig.from_document(document)
    if blocks is None:
        return found
    return DecoderConfig.from_document(document | {"quantization": compressed.parse(blocks, modules_of(found))})


def modules_of(config: DecoderConfig) -> Iterator[tuple[int, str, list[Piece]]]:
    """What may be quantized of a model that is not: layer, parameter and its pieces."""
    for layer in range(config.num_hidden_layers):
        for role, pieces in layer_pieces(config, layer).items():
            if role in QUANTIZED:
                yield layer, role, list(pieces)


def layer_pieces(config: DecoderConfig, layer: int) -> Pieces:
    """What makes up each parameter of a layer."""
    if config.family == "meta":
        return meta.pieces(config, layer)
    found = FAMILIES[config.family].pieces(config, layer)
    return found if config.quantization is None else {role: _stored(config, layer, role, found[role]) for role in found}


def _stored(config: DecoderConfig, layer: int, role: str, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    blocks = config.blocks_of(layer, role, pieces[0].width)
    return pieces if blocks is None else tuple(piece.quantized(blocks) for piece in pieces)


def end_pieces(config: DecoderConfig) -> Pieces:
    return meta.end_pieces(config) if config.family == "meta" else naming.of_ends(config)


def stage_tensors(config: DecoderConfig, first: int, last: int) -> Iterator[Piece]:
    """The pieces of layers [first, last), a layer at a time: there may be very many."""
    for layer in range(first, last):
        for pieces in layer_pieces(config, layer).values():
            yield from pieces


def end_tensors(config: DecoderConfig, ends: Ends = BOTH) -> Iterator[Piece]:
    """Those of embedding, final norm and, unless tied to the embedding, head."""
    pieces = end_pieces(config)
    for role in of_ends(config, ends):
        yield from pieces[role]


def json_object(data: bytes, name: str) -> dict[str, Any]:
    """Raises TooLarge over 1 MiB, BadInput for what is no object."""
    if len(data) > MAX_CONFIG_BYTES:
        raise TooLarge(name, f"{len(data)} bytes, at most {MAX_CONFIG_BYTES}")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInput(name, "not JSON") from error
    if not isinstance(document, dict):
        raise BadInput(name, "not an object")
    return document
