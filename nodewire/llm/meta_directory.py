"""A Llama's directory as Meta lays it out: params.json, consolidated.safetensors, tokenizer.model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nodewire.errors import BadInput, BadTask, NotFound
from nodewire.llm.config import DecoderConfig
from nodewire.llm.families import json_object, meta
from nodewire.llm.families.fields import Fields
from nodewire.llm.meta_tokenizer import converted
from nodewire.llm.tokenizer import MAX_TOKENIZER_BYTES
from nodewire.weights.directory import read_bounded, read_tokenizer
from nodewire.weights.tensorfile import MAX_HEADER_BYTES, Stored, read_header

PARAMS, WEIGHTS = "params.json", "consolidated.safetensors"
_NEVER_READ = frozenset({"max_batch_size", "_sliding_window", "model_type", "architecture"})


def is_one(directory: Path) -> bool:
    return (directory / PARAMS).is_file() and not (directory / "config.json").exists()


def opened(directory: Path) -> tuple[DecoderConfig, Mapping[str, Stored], bytes]:
    """Its configuration, its tensors (headers are read), and its tokenizer as a tokenizer.json.

    Raises:
        NotFound, BadTask, BadInput, TooLarge: a file is missing, malformed, or a pickle.
    """
    if not (directory / WEIGHTS).is_file():
        pickles = sorted(directory.glob("consolidated.*.pth"))
        if pickles:
            raise BadInput(
                pickles[0].name,
                "a pickle runs code as it is read, so it is not; take the model's folder with safetensors, "
                f"or write its tensors to {WEIGHTS} where you trust it",
            )
        raise NotFound(WEIGHTS, f"not in {directory}")
    tensors = read_header(directory / WEIGHTS)
    table = tensors.get(meta.EMBEDDING)
    if table is None or len(table.shape) != 2:
        raise BadTask(f"weights.{meta.EMBEDDING}", "missing, or no matrix")
    # Kept with the weights of some, though it follows from the rest.
    tensors = {name: stored for name, stored in tensors.items() if name != "rope.freqs"}
    fields = Fields(json_object(read_bounded(directory / PARAMS, MAX_HEADER_BYTES), PARAMS), _NEVER_READ)
    document = meta.parse(fields, table.shape[0], tied=meta.HEAD not in tensors)
    fields.end()
    tokenizer, ends = _tokenizer(directory)
    return DecoderConfig.from_document(document | {"eos_token_id": ends}), tensors, tokenizer


def _tokenizer(directory: Path) -> tuple[bytes, list[int]]:
    """A tokenizer.json, as it lies there or made of the tokenizer.model, and the ids that end a text."""
    if (directory / "tokenizer.json").is_file():
        return read_tokenizer(directory, MAX_TOKENIZER_BYTES), []
    return converted(read_bounded(directory / "tokenizer.model", MAX_TOKENIZER_BYTES))
