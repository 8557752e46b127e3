"""The model families that nodewire decodes: each is one file that reads a config.json and names the tensors.

A new family adds its file, its entry below and its name to `DecoderConfig.family`. What its layers compute is said by
the other fields of DecoderConfig, so a family that computes what no field says needs one there, and in the layers.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from nodewire.errors import BadInput, BadTask, TooLarge
from nodewire.llm.families import multimodal
from nodewire.llm.families.fields import compressed_tensors, quantization_methods, tensor_names
from nodewire.llm.families.fields.fields import Fields
from nodewire.llm.families.layer_norm import bloom, cohere, cohere2, falcon, gpt2, gpt_neox, mpt, stablelm, starcoder2
from nodewire.llm.families.mixture import deepseek_v2, deepseek_v3, glm4_moe, gpt_oss, mixtral, qwen2_moe, qwen3_moe
from nodewire.llm.families.rms_norm import (
    gemma,
    gemma2,
    gemma3,
    granite,
    llama,
    meta,
    mistral,
    olmo2,
    olmo3,
    phi3,
    qwen2,
    qwen3,
    smollm3,
)
from nodewire.llm.spec.config import QUANTIZED, DecoderConfig
from nodewire.llm.spec.parameters import BOTH, Ends, of_ends

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nodewire.llm.families.fields.tensor_names import Piece, Pieces
    from nodewire.weights.tensorfile import StoredTensor

MAX_CONFIG_BYTES = 1_048_576


class Family(Protocol):
    """What an adapter file offers. Tensor names are those of the checkpoint."""

    ARCHITECTURE: str

    def parse(self, fields: Fields) -> dict[str, Any]:
        """The fields of a DecoderConfig, unchecked. Raises BadTask for a variant that the layers do not compute."""

    def pieces(self, config: DecoderConfig, layer: int) -> Pieces:
        """What makes up each parameter of a layer (nodewire.llm.spec.parameters)."""


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
    "smollm3": smollm3,
    "olmo2": olmo2,
    "olmo3": olmo3,
    "granite": granite,
    "stablelm": stablelm,
    "starcoder2": starcoder2,
    "cohere": cohere,
    "cohere2": cohere2,
    "gpt_neox": gpt_neox,
    "gpt2": gpt2,
    "falcon": falcon,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "bloom": bloom,
    "mpt": mpt,
}
"""Those of Hugging Face's layout; Meta's own (`meta`) names no architecture."""
_ENDS = {
    "meta": meta.ENDS,
    "gpt2": gpt2.ENDS,
    "gpt_neox": gpt_neox.ENDS,
    "falcon": falcon.ENDS,
    "bloom": bloom.ENDS,
    "mpt": mpt.ENDS,
}
"""Names of embedding, final norm and head that are not Llama's."""
_NAMED = {"gpt2": gpt2.own_name, "gpt_neox": gpt_neox.own_name, "bloom": bloom.own_name, "mpt": mpt.own_name}
ALIASES = {mpt.OWN_ARCHITECTURE: "mpt"}
"""Classes of authors' own code whose files say what those of `transformers` do."""
_BY_CLASS = {family.ARCHITECTURE: name for name, family in FAMILIES.items()} | ALIASES
ARCHITECTURES = _BY_CLASS.keys() | multimodal.ARCHITECTURES


def parse_config(data: bytes, generation: bytes | None = None) -> DecoderConfig:
    """The decoder that a config.json describes; a generation_config.json beside it may name further end tokens.

    Of matrices that are made anew as they are read (nodewire.llm.checkpoint.dequantization) it says nothing.

    Raises:
        TooLarge: longer than 1 MiB.
        BadTask: no known family, or a field missing, unknown, out of bounds or not supported (it is named).

    """
    config = json_object(data, "config.json")
    if multimodal.sees(config):
        config = multimodal.language(config)
    ends = json_object(generation, "generation_config.json").get("eos_token_id") if generation is not None else None
    return parse_document(config, ends)


def parse_document(config: Mapping[str, Any], ends: Any = None) -> DecoderConfig:
    """As `parse_config`, of an object; `ends` are tokens that end a text, in place of those that it names."""
    architectures = config.get("architectures")
    name = next((name for kind, name in _BY_CLASS.items() if architectures == [kind]), None)
    if name is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise BadTask("architectures", f"{str(architectures)[:80]} is not one of those that generate text: {known}")
    anew = quantization_methods.said_of(config)
    blocks = None if anew is not None else compressed_tensors.said_of(config)
    fields = Fields(config if anew is None and blocks is None else {**config, "quantization_config": None})
    document = FAMILIES[name].parse(fields)
    if "quantization_config" in fields:
        raise BadTask(
            "quantization_config",
            f"only of the methods {compressed_tensors.METHOD}, gptq, awq and fp8, or mxfp4 of gpt-oss. Take the model "
            "unquantized: `nodewire quantize` makes it smaller",
        )
    fields.end()
    if ends is None:
        ends = config.get("eos_token_id")
    document |= {"family": name, "eos_token_id": [] if ends is None else ends if isinstance(ends, list) else [ends]}
    found = DecoderConfig.from_document(document)
    if blocks is None:
        return found
    return DecoderConfig.from_document(document | {"quantization": compressed_tensors.parse(blocks, modules_of(found))})


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
    return tensor_names.of_ends(config, *_ENDS.get(config.family, ()))


def own_tensors(config: DecoderConfig, stored: Mapping[str, StoredTensor], *, sees: bool) -> dict[str, StoredTensor]:
    """A checkpoint's tensors by the names that `layer_pieces` and `end_pieces` have.

    Of one that `sees` those of the language model; GPT-2's and BLOOM's own files, those of GPT-NeoX that newer
    libraries write, and MPT's have other names.
    """
    found = {}
    for name, one in stored.items():
        own = multimodal.own_name(name) if sees else name
        if own is not None:
            found[_NAMED[config.family](own) if config.family in _NAMED else own] = one
    return found


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
