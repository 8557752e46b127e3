"""A GGUF file opened: the model's configuration, tensors and tokenizer, of which headers alone are read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from nodewire.gguf.chat import chat_of
from nodewire.gguf.model import open_model
from nodewire.llm.families import parse_document
from nodewire.llm.gguf import configuration, tensors
from nodewire.llm.gguf.tokenizer import converted
from nodewire.weights.gguf_rows import check_library

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nodewire.llm.spec.config import DecoderConfig
    from nodewire.weights.tensorfile import StoredTensor

_MODEL_TYPES = {"gemma3": "gemma3_text"}
"""Where `transformers` calls them otherwise than the family."""


class GgufCheckpoint(NamedTuple):
    """`beside` are the files that a Hugging Face directory of the model would have beside its weights, by name.

    They say nothing of blocks.
    """

    config: DecoderConfig
    tensors: Mapping[str, StoredTensor]
    tokenizer: bytes
    beside: Mapping[str, bytes]


def opened(path: Path, *, in_blocks: bool) -> GgufCheckpoint:
    """The model at `path`; with `in_blocks` what blocks of the file are blocks of tasks too stays in them.

    Raises:
        NotFound: a file is missing.
        BadTask, BadInput, Unsupported, TooLarge: a file is malformed, or the model is not one that nodewire decodes.
        BadConfig: blocks are to be widened, and the library for it is not installed.
        OSError: a file cannot be read.

    """
    model = open_model(path)
    document = configuration.document(model)
    tokenizer, ends = converted(model, document["vocab_size"])
    document["eos_token_id"] = ends
    plain = parse_document(document)
    config, found = tensors.stored_tensors(model, plain, in_blocks=in_blocks)
    check_library(tuple(model.tensors.values()))
    document["model_type"] = _MODEL_TYPES.get(config.family, config.family)
    template, tokens = chat_of(model)
    said = {"tokenizer_class": "PreTrainedTokenizerFast", **tokens, **({"chat_template": template} if template else {})}
    beside = {"config.json": _json(document), "tokenizer.json": tokenizer, "tokenizer_config.json": _json(said)}
    return GgufCheckpoint(config, found, tokenizer, beside)


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()
