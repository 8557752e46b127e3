"""What a recipe's model starts from, read from its customer's files: weights and tokenizer, checked by their hashes.

Weights are safetensors files in a folder as Hugging Face lays it out (model.safetensors, or shards with an index), or
one file; the tokenizer is the tokenizer.json there or beside it. A GGUF file holds both. Nothing is executed, and every
size is checked before memory is taken.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from nodewire.errors import BadHash, BadInput, NotFound, TooLarge
from nodewire.gguf import model as gguf
from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.protocol.model.manifest import BlobRef
from nodewire.training.engine import state
from nodewire.training.protocol import initial_weights
from nodewire.weights.directory import stored_tensors
from nodewire.weights.tensorfile import StoredTensor, read_header

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nodewire.training.engine.state import State
    from nodewire.training.protocol.recipe import Recipe

TOKENIZER = "tokenizer.json"


class Start(NamedTuple):
    """`tensors` are float32, in the family's order; each is None where the recipe cites none."""

    tensors: State | None = None
    tokenizer: bytes | None = None


def read(recipe: Recipe, path: Path | None) -> Start:
    """All that the recipe cites, from the folder or the safetensors file at `path`.

    Raises:
        BadInput: the recipe cites files, and no path was given.
        NotFound: a file is not there.
        BadRecipe, TooLarge: a size is not what it can be.
        BadTask: a safetensors file is malformed, or a tensor is missing, of another shape or dtype, or not finite.
        BadHash: a file is another than the recipe cites; it is named, with both hashes.

    """
    weights, tokenizer = initial_weights.find_weights(recipe), initial_weights.tokenizer_of(recipe)
    if weights is None and tokenizer is None:
        return Start()
    if path is None:
        raise BadInput("--start", "the recipe starts from files: name the folder that they are in")
    initial_weights.check(recipe)
    if not path.exists():
        raise NotFound("--start", f"nothing at {path}")
    said = _tokenizer(path, tokenizer) if tokenizer is not None else None
    return Start(_weights(recipe, path, weights) if weights is not None else None, said)


def cited(tensors: State) -> BlobRef:
    """The reference that a recipe starts from these tensors by; they are hashed where they stand."""
    head = initial_weights.header({name: tuple(tensor.shape) for name, tensor in tensors.items()})
    digest, size = hashlib.sha256(head), len(head)
    for name in sorted(tensors):
        data = state.view(tensors[name])
        digest.update(data)
        size += len(data)
    return BlobRef(sha256=digest.hexdigest(), bytes=size)


def _tokenizer(path: Path, ref: BlobRef) -> bytes:
    if gguf.is_gguf(path):
        _compare("family.tokenizer", path, hashlib.sha256(data := open_checkpoint(path).tokenizer).hexdigest(), ref)
        return data
    file = path / TOKENIZER if path.is_dir() else path.with_name(TOKENIZER)
    if not file.is_file():
        raise NotFound("family.tokenizer", f"no {TOKENIZER} in {file.parent}")
    if file.stat().st_size > initial_weights.MAX_TOKENIZER_BYTES:
        raise TooLarge("family.tokenizer", f"{file} has over {initial_weights.MAX_TOKENIZER_BYTES} bytes")
    data = file.read_bytes()
    _compare("family.tokenizer", file, hashlib.sha256(data).hexdigest(), ref)
    return data


def _weights(recipe: Recipe, path: Path, ref: BlobRef) -> State:
    stored: Mapping[str, StoredTensor]
    if gguf.is_gguf(path):
        stored = open_checkpoint(path, in_blocks=False).tensors
    else:
        stored = stored_tensors(path) if path.is_dir() else read_header(path)
    tensors = state.of_stored(stored, recipe.family.shapes())
    _compare("family.start", path, cited(tensors).sha256, ref)
    return tensors


def _compare(field: str, path: Path, sha256: str, ref: BlobRef) -> None:
    if sha256 != ref.sha256:
        raise BadHash(field, f"{path} holds {sha256}, the recipe cites {ref.sha256}")
