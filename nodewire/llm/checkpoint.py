"""A model's directory: config.json, safetensors (one file or shards), tokenizer.json; or as Meta lays it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nodewire.errors import BadTask
from nodewire.llm import meta_directory
from nodewire.llm.config import DecoderConfig
from nodewire.llm.families import parse_config
from nodewire.llm.families.naming import Piece
from nodewire.llm.tokenizer import MAX_TOKENIZER_BYTES
from nodewire.protocol.stored_dtypes import CODE_OF
from nodewire.weights.directory import read_bounded, read_tokenizer, stored_tensors
from nodewire.weights.tensorfile import DTYPES, MAX_HEADER_BYTES, Stored


@dataclass(frozen=True, slots=True)
class Checkpoint:
    config: DecoderConfig
    tensors: Mapping[str, Stored]
    tokenizer: bytes

    def pick(self, pieces: Iterable[Piece]) -> dict[str, Stored]:
        """The stored tensors of these pieces.

        Raises:
            BadTask: one is missing, or of another shape or a dtype that weights may not have.
        """
        found = {}
        for piece in pieces:
            for name, shape in piece.stored().items():
                stored = self.tensors.get(name)
                if stored is None:
                    raise BadTask(f"weights.{name}", "missing")
                dtypes = (CODE_OF["uint8"],) if piece.packed else DTYPES
                if stored.shape != shape or stored.dtype not in dtypes:
                    raise BadTask(f"weights.{name}", f"{stored.dtype[:20]} {list(stored.shape)}, not {list(shape)}")
                found[name] = stored
        return found


def open_checkpoint(directory: Path) -> Checkpoint:
    """The model in `directory`; of its weights only headers are read.

    Raises:
        NotFound: a file is missing.
        BadTask, BadInput, TooLarge: a file is malformed or the model is not one that nodewire decodes.
    """
    if meta_directory.is_one(directory):
        return Checkpoint(*meta_directory.opened(directory))
    generation = directory / "generation_config.json"
    config = parse_config(
        read_bounded(directory / "config.json", MAX_HEADER_BYTES),
        read_bounded(generation, MAX_HEADER_BYTES) if generation.exists() else None,
    )
    tensors = stored_tensors(directory)
    return Checkpoint(config, tensors, read_tokenizer(directory, MAX_TOKENIZER_BYTES))
