"""A model's directory as Hugging Face lays its weights out: one safetensors file, or shards and their index."""

from __future__ import annotations

import json
from pathlib import Path

from nodewire.errors import BadInput, BadTask, NotFound, TooLarge
from nodewire.protocol.model.text_rules import MAX_TOKENIZER_VALUES
from nodewire.weights.tensorfile import MAX_HEADER_BYTES, StoredTensor, read_header

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PICKLED = "*.bin"
_SAVED_ANEW = "nobody loads those here; `save_pretrained` of transformers writes safetensors"


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """The tensors of a directory's weights: model.safetensors, or the shards that its index names; headers are read.

    Raises:
        NotFound, BadTask, BadInput, TooLarge: a file is missing or malformed, or a tensor stands in two.

    """
    tensors: dict[str, StoredTensor] = {}
    for path in weight_files(directory):
        try:
            header = read_header(path)
        except BadTask as error:
            raise BadTask(path.name, error.reason) from None
        for name, stored in header.items():
            if name in tensors:
                raise BadTask(f"weights.{name[:80]}", "in two files")
            tensors[name] = stored
    return tensors


def stored_if_any(directory: Path) -> dict[str, StoredTensor] | None:
    """As `stored_tensors`; None where there is neither the one file nor an index of shards."""
    return stored_tensors(directory) if any((directory / one).exists() for one in (SINGLE, INDEX)) else None


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """A small file whole. Raises NotFound, TooLarge."""
    size = _existing(path).stat().st_size
    if size > max_bytes:
        raise TooLarge(path.name, f"{size} bytes, at most {max_bytes}")
    return path.read_bytes()


def read_tokenizer(directory: Path, max_bytes: int) -> bytes:
    """A directory's tokenizer.json, which is published as it is: so it must be one, and not what a link leads to.

    Raises:
        NotFound, TooLarge, BadInput: there is none.

    """
    data = read_bounded(directory / "tokenizer.json", max_bytes)
    if (values := data.count(b",")) > MAX_TOKENIZER_VALUES:
        raise TooLarge("tokenizer.json", f"{values} values, at most {MAX_TOKENIZER_VALUES}")
    try:
        if isinstance(json.loads(data)["model"], dict):
            return data
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise BadInput("tokenizer.json", "not a tokenizer: it has no model")


def weight_files(directory: Path) -> list[Path]:
    """model.safetensors, or the shards that its index names. Raises as `stored_tensors`."""
    index = directory / INDEX
    if not index.exists():
        if not (directory / SINGLE).exists() and any(directory.glob(_PICKLED)):
            raise NotFound(SINGLE, f"not in {directory}, whose weights are pickled ({_PICKLED}): {_SAVED_ANEW}")
        return [_existing(directory / SINGLE)]
    try:
        names = sorted(set(json.loads(read_bounded(index, MAX_HEADER_BYTES))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(INDEX, "not an index of shards") from error
    if any(not isinstance(name, str) or Path(name).name != name for name in names):
        raise BadInput(INDEX, "a shard's name is not that of a file beside the index")
    return [_existing(directory / name) for name in names]


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise NotFound(path.name, f"not in {path.parent}")
    return path
