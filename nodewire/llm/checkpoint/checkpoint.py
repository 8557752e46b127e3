"""A model's directory, or a GGUF file.

A directory has config.json, safetensors (one file or shards) and tokenizer.json, or lies as Meta lays it out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from nodewire.errors import BadTask
from nodewire.gguf import model as gguf
from nodewire.llm.checkpoint import dequantization, meta_layout
from nodewire.llm.families import end_tensors, json_object, multimodal, own_tensors, parse_config, stage_tensors
from nodewire.llm.families.fields import quantization_methods
from nodewire.llm.families.fields.tensor_names import NUMBERS, Piece
from nodewire.llm.gguf.file import opened
from nodewire.protocol.tensors.safetensors_dtypes import CODE_OF
from nodewire.text.detokenizer import MAX_TOKENIZER_BYTES
from nodewire.weights.derived_tensors import DerivedTensor, is_widened, widened_to
from nodewire.weights.directory import SINGLE, read_bounded, read_tokenizer, stored_if_any, stored_tensors
from nodewire.weights.tensorfile import DTYPES, MAX_HEADER_BYTES, StoredTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nodewire.llm.spec.config import DecoderConfig


_FEW_BITS = "few bits"
"""Numbers that are widened as they are read, among the dtypes of those that are stored."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    config: DecoderConfig
    tensors: Mapping[str, StoredTensor]
    tokenizer: bytes
    lacks: tuple[str, ...] = ()
    """The files that are not there, in place of which `open_checkpoint` made something up."""
    note: str = ""
    """What of the directory is no part of this, if there is such."""
    beside: Mapping[str, bytes] | None = None
    """What a directory of the model would hold beside its weights, by file name, of one that lies in a GGUF file."""

    @property
    def arithmetic(self) -> Literal["float32", "bfloat16"]:
        """What a task computes in unless it is said.

        It is bfloat16 if most numbers are stored so, or have been rounded to few bits; else float32, which loses
        nothing.
        """
        experts = self.config.experts
        if self.config.quantization is not None or (experts is not None and experts.stored == "mxfp4"):
            return "bfloat16"
        return _of_most(self.tensors.values(), (_FEW_BITS, "bfloat16"))

    @property
    def lossless_arithmetic(self) -> Literal["float32", "bfloat16"]:
        """The same, but float32 where numbers are widened, of which bfloat16 would keep fewer digits."""
        how = self.config.quantization
        if how is not None:
            return "float32" if how.scheme == "nvfp4" else "bfloat16"
        return _of_most(self.tensors.values(), ("bfloat16",))

    @property
    def is_drawn(self) -> bool:
        """Whether tensors are made as they are read, which takes READING_BYTES."""
        return any(isinstance(stored, DerivedTensor) for stored in self.tensors.values())

    def for_arithmetic(self, dtype: str) -> Checkpoint:
        """The same, what is widened as it is read widened to the dtype that is computed in, and no further."""
        return replace(self, tensors={name: widened_to(stored, dtype) for name, stored in self.tensors.items()})

    def pick(self, pieces: Iterable[Piece]) -> dict[str, StoredTensor]:
        """The stored tensors of these pieces.

        Raises:
            BadTask: one is missing, or of another shape or a dtype that weights may not have.

        """
        found = {}
        for piece in pieces:
            for name, (dtype, shape) in piece.stored().items():
                stored = self.tensors.get(name)
                if stored is None:
                    raise BadTask(f"weights.{name}", "missing")
                dtypes = DTYPES if dtype == NUMBERS else (dtype, CODE_OF[dtype])
                if stored.shape != shape or stored.dtype not in dtypes:
                    raise BadTask(f"weights.{name}", f"{stored.dtype[:20]} {list(stored.shape)}, not {list(shape)}")
                found[name] = stored
        return found


def open_checkpoint(directory: Path, *, is_dry: bool = False, in_blocks: bool = True) -> Checkpoint:
    """The model in `directory`, which may be a GGUF file instead; of its weights only headers are read.

    Blocks of a GGUF file, and of GPTQ and AWQ, that tasks know, too, stay blocks; without `in_blocks` all of these
    weights are numbers.

    For a dry run there may be no weights, whose tensors then have the shapes that config.json gives them and the dtype
    that it names, and no tokenizer, which is empty then.

    Raises:
        NotFound: a file is missing.
        BadTask, BadInput, TooLarge: a file is malformed or the model is not one that nodewire decodes.
        BadConfig: a GGUF file's blocks are to be widened, and the library for it is not installed.

    """
    if gguf.is_gguf(directory):
        made = opened(directory, in_blocks=in_blocks)
        return Checkpoint(made.config, made.tensors, made.tokenizer, beside=made.beside)
    if meta_layout.is_one(directory):
        config, found, tokenizer, lacks = meta_layout.opened(directory, is_dry=is_dry)
        tensors = _foreseen(config, Path(meta_layout.WEIGHTS), "bfloat16") if found is None else found
        return Checkpoint(config, tensors, tokenizer, lacks)
    generation = directory / "generation_config.json"
    said = read_bounded(directory / "config.json", MAX_HEADER_BYTES)
    config = parse_config(
        said,
        read_bounded(generation, MAX_HEADER_BYTES) if generation.exists() else None,
    )
    document = json_object(said, "config.json")
    sees = multimodal.sees(document)
    note = multimodal.note(document) if sees else ""
    method = quantization_methods.said_of(multimodal.language(document) if sees else document)
    found = stored_if_any(directory) if is_dry else stored_tensors(directory)
    if found is None:
        tensors = _foreseen(config, Path(SINGLE), _dtype(document))
        tensors = tensors if method is None else dequantization.foreseen(method, config, tensors)
    else:
        tensors = own_tensors(config, found, sees=sees)
    if method is not None:
        config, tensors = dequantization.made(method, config, tensors, in_blocks=in_blocks)
        note = "; ".join(filter(None, (note, dequantization.describe(method, config))))
    has_tokenizer = not is_dry or (directory / "tokenizer.json").exists()
    tokenizer = read_tokenizer(directory, MAX_TOKENIZER_BYTES) if has_tokenizer else b""
    lacks = (*(() if found is not None else (SINGLE,)), *(() if has_tokenizer else ("tokenizer.json",)))
    return Checkpoint(config, tensors, tokenizer, lacks, note)


def _of_most(tensors: Iterable[StoredTensor], narrow: tuple[str, ...]) -> Literal["float32", "bfloat16"]:
    """bfloat16 if most numbers are of these kinds."""
    counts = Counter[str]()
    for one in tensors:
        kind = _FEW_BITS if is_widened(one) else one.dtype
        counts[kind] += prod(one.shape) if one.dtype in DTYPES else 0
    return "bfloat16" if 2 * sum(counts[kind] for kind in narrow) > counts.total() else "float32"


def _dtype(document: Mapping[str, Any]) -> str:
    """What a config.json names; float32 if that is none that weights may have."""
    named = document.get("dtype") or document.get("torch_dtype")
    return named if isinstance(named, str) and named in DTYPES else "float32"


def _foreseen(config: DecoderConfig, path: Path, dtype: str) -> dict[str, StoredTensor]:
    """A model's tensors as its configuration has them, in no file: of `dtype`, or of what blocks are."""
    found = {}
    for piece in chain(end_tensors(config), stage_tensors(config, 0, config.num_hidden_layers)):
        for name, kept in piece.stored().items():
            stored = dtype if kept.dtype == NUMBERS else kept.dtype
            nbytes = prod(kept.shape) * getattr(torch, stored).itemsize
            found[name] = StoredTensor(path, stored if stored in DTYPES else CODE_OF[stored], kept.shape, 0, nbytes)
    return found
