"""A Llama's directory as Meta lays it out: params.json, consolidated.safetensors, tokenizer.model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import BadInput, BadTask, NotFound
from nodewire.llm.families import json_object
from nodewire.llm.families.fields.fields import Fields
from nodewire.llm.families.rms_norm import meta
from nodewire.llm.spec.config import DecoderConfig
from nodewire.llm.tokens.meta_tokenizer import converted
from nodewire.text.detokenizer import MAX_TOKENIZER_BYTES
from nodewire.weights.directory import read_bounded, read_tokenizer
from nodewire.weights.tensorfile import MAX_HEADER_BYTES, StoredTensor, read_header

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PARAMS, WEIGHTS = "params.json", "consolidated.safetensors"
TOKENIZERS = ("tokenizer.json", "tokenizer.model")
_NEVER_READ = frozenset({"max_batch_size", "_sliding_window", "model_type", "architecture"})


def is_one(directory: Path) -> bool:
    return (directory / PARAMS).is_file() and not (directory / "config.json").exists()


def opened(
    directory: Path, *, is_dry: bool = False
) -> tuple[DecoderConfig, Mapping[str, StoredTensor] | None, bytes, tuple[str, ...]]:
    """Its configuration, its tensors (headers are read), its tokenizer as a tokenizer.json, and the files it lacks.

    Only for a dry run may it lack any. Without weights there are no tensors: params.json must say how large the
    vocabulary is, and the head is taken not to be the embedding. A tokenizer that is not there is empty.

    Raises:
        NotFound, BadTask, BadInput, TooLarge: a file is missing, malformed, or a pickle.

    """
    fields = json_object(read_bounded(directory / PARAMS, MAX_HEADER_BYTES), PARAMS)
    said = fields.get("vocab_size")
    if is_dry and not (directory / WEIGHTS).is_file() and type(said) is int and said > 0:
        tensors, vocabulary, tied = None, said, False
    else:
        tensors = _tensors(directory)
        vocabulary, tied = tensors[meta.EMBEDDING].shape[0], meta.HEAD not in tensors
    taken = Fields(fields, _NEVER_READ)
    document = meta.parse(taken, vocabulary, tied=tied)
    taken.end()
    has_tokenizer = not is_dry or any((directory / name).is_file() for name in TOKENIZERS)
    tokenizer, ends = _tokenizer(directory) if has_tokenizer else (b"", [])
    lacks = (*(() if tensors is not None else (WEIGHTS,)), *(() if has_tokenizer else (TOKENIZERS[1],)))
    return DecoderConfig.from_document(document | {"eos_token_id": ends}), tensors, tokenizer, lacks


def _tensors(directory: Path) -> Mapping[str, StoredTensor]:
    """Those of its weights, which have an embedding."""
    if not (directory / WEIGHTS).is_file():
        pickles = sorted(directory.glob("consolidated.*.pth"))
        if pickles:
            raise BadInput(
                pickles[0].name,
                "a pickle runs code as it is read, so it is not read. Take the model's folder with safetensors, "
                f"or write its tensors to {WEIGHTS} where you trust it",
            )
        raise NotFound(WEIGHTS, f"not in {directory}")
    tensors = read_header(directory / WEIGHTS)
    table = tensors.get(meta.EMBEDDING)
    if table is None or len(table.shape) != 2:
        raise BadTask(f"weights.{meta.EMBEDDING}", "missing, or no matrix")
    # Kept with the weights of some, though it follows from the rest.
    return {name: stored for name, stored in tensors.items() if name != "rope.freqs"}


def _tokenizer(directory: Path) -> tuple[bytes, list[int]]:
    """A tokenizer.json, as it lies there or made of the tokenizer.model, and the ids that end a text."""
    if (directory / "tokenizer.json").is_file():
        return read_tokenizer(directory, MAX_TOKENIZER_BYTES), []
    return converted(read_bounded(directory / "tokenizer.model", MAX_TOKENIZER_BYTES))
