"""A model's directory as Hugging Face lays it out: config.json, safetensors (one file or shards), tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from nodewire.errors import BadTask
from nodewire.llm.config import DecoderConfig
from nodewire.llm.families import driver_shapes, parse_config, stage_shapes
from nodewire.llm.tokenizer import MAX_TOKENIZER_BYTES
from nodewire.weights.directory import SINGLE, read_bounded, read_tokenizer, stored_if_any, stored_tensors
from nodewire.weights.tensorfile import DTYPES, MAX_HEADER_BYTES, Stored


@dataclass(frozen=True, slots=True)
class Checkpoint:
    config: DecoderConfig
    tensors: Mapping[str, Stored]
    tokenizer: bytes
    lacks: tuple[str, ...] = ()
    """The files that are not there, in place of which `open_checkpoint` made something up."""

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


def open_checkpoint(directory: Path, *, is_dry: bool = False) -> Checkpoint:
    """The model in `directory`; of its weights only headers are read.

    For a dry run there may be no weights, whose tensors then have the shapes that config.json gives them and the dtype
    that it names, and no tokenizer, which is empty then.

    Raises:
        NotFound: a file is missing.
        BadTask, BadInput, TooLarge: a file is malformed or the model is not one that nodewire decodes.
    """
    generation = directory / "generation_config.json"
    said = read_bounded(directory / "config.json", MAX_HEADER_BYTES)
    config = parse_config(
        said,
        read_bounded(generation, MAX_HEADER_BYTES) if generation.exists() else None,
    )
    if not is_dry:
        return Checkpoint(config, stored_tensors(directory), read_tokenizer(directory, MAX_TOKENIZER_BYTES))
    tensors = stored_if_any(directory)
    has_tokenizer = (directory / "tokenizer.json").exists()
    lacks = (*(() if tensors is not None else (SINGLE,)), *(() if has_tokenizer else ("tokenizer.json",)))
    tokenizer = read_tokenizer(directory, MAX_TOKENIZER_BYTES) if has_tokenizer else b""
    return Checkpoint(config, _foreseen(config, said) if tensors is None else tensors, tokenizer, lacks)


def _foreseen(config: DecoderConfig, said: bytes) -> dict[str, Stored]:
    """A model's tensors as its configuration `said` has them: in no file."""
    named = json.loads(said)
    dtype = named.get("dtype", named.get("torch_dtype"))
    dtype = dtype if dtype in DTYPES else "float32"
    shapes = {**driver_shapes(config), **stage_shapes(config, 0, config.num_hidden_layers)}
    return {
        name: Stored(Path(SINGLE), dtype, shape, 0, prod(shape) * DTYPES[dtype].itemsize)
        for name, shape in shapes.items()
    }
