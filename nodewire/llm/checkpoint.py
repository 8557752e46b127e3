"""A model's directory as Hugging Face lays it out: config.json, safetensors (one file or shards), tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nodewire.errors import BadInput, BadTask, NotFound, TooLarge
from nodewire.llm.config import DecoderConfig
from nodewire.llm.families import parse_config
from nodewire.llm.tensorfile import DTYPES, MAX_HEADER_BYTES, Stored, read_header
from nodewire.llm.tokenizer import MAX_TOKENIZER_BYTES

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    config: DecoderConfig
    tensors: Mapping[str, Stored]
    tokenizer: bytes

    def pick(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Stored]:
        """The stored tensors of these names.

        Raises:
            BadTask: one is missing, or of another shape or a dtype that weights may not have.
        """
        for name, shape in shapes.items():
            stored = self.tensors.get(name)
            if stored is None:
                raise BadTask(f"weights.{name}", "missing")
            if stored.shape != shape or stored.dtype not in DTYPES:
                raise BadTask(f"weights.{name}", f"{stored.dtype[:20]} {list(stored.shape)}, not {list(shape)}")
        return {name: self.tensors[name] for name in shapes}


def open_checkpoint(directory: Path) -> Checkpoint:
    """The model in `directory`; of its weights only headers are read.

    Raises:
        NotFound: a file is missing.
        BadTask, BadInput, TooLarge: a file is malformed or the model is not one that nodewire decodes.
    """
    generation = directory / "generation_config.json"
    config = parse_config(
        _read(directory / "config.json", MAX_HEADER_BYTES),
        _read(generation, MAX_HEADER_BYTES) if generation.exists() else None,
    )
    tensors = stored_tensors(directory)
    return Checkpoint(config, tensors, _read(directory / "tokenizer.json", MAX_TOKENIZER_BYTES))


def stored_tensors(directory: Path) -> dict[str, Stored]:
    """The tensors of a directory's weights: model.safetensors, or the shards that its index names; headers are read.

    Raises:
        NotFound, BadTask, BadInput, TooLarge: a file is missing or malformed, or a tensor stands in two.
    """
    tensors: dict[str, Stored] = {}
    for path in _weight_files(directory):
        for name, stored in read_header(path).items():
            if name in tensors:
                raise BadTask(f"weights.{name[:80]}", "in two files")
            tensors[name] = stored
    return tensors


def _weight_files(directory: Path) -> list[Path]:
    index = directory / INDEX
    if not index.exists():
        return [_existing(directory / SINGLE)]
    try:
        names = sorted(set(json.loads(_read(index, MAX_HEADER_BYTES))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(INDEX, "not an index of shards") from error
    if any(not isinstance(name, str) or Path(name).name != name for name in names):
        raise BadInput(INDEX, "a shard's name is not that of a file beside the index")
    return [_existing(directory / name) for name in names]


def _read(path: Path, max_bytes: int) -> bytes:
    size = _existing(path).stat().st_size
    if size > max_bytes:
        raise TooLarge(path.name, f"{size} bytes, at most {max_bytes}")
    return path.read_bytes()


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise NotFound(path.name, f"not in {path.parent}")
    return path
