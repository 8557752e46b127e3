"""The files that a model starts from, and the one form of its weights that a recipe's `start` is the hash of. Pure.

The form is the safetensors file of exactly the family's tensors, float32, by name, without gaps and without metadata:
whatever files and dtypes the weights are kept in, there is one hash of them, and a reader knows every byte of the
header before it comes. nips/30-training-recipes.md.
"""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING

from nodewire.errors import BadRecipe
from nodewire.protocol.model.families import Decoder, Encoder, Shapes, count
from nodewire.protocol.tensors.safetensors_dtypes import CODE_OF

if TYPE_CHECKING:
    from nodewire.protocol.model.manifest import BlobRef
    from nodewire.training.protocol.recipe import Recipe

MAX_TOKENIZER_BYTES = 64 * 2**20


def find_weights(recipe: Recipe) -> BlobRef | None:
    """The weights that the recipe's model starts from, if it starts from any."""
    family = recipe.family
    return family.start if isinstance(family, Decoder | Encoder) else None


def tokenizer_of(recipe: Recipe) -> BlobRef | None:
    """The tokenizer.json that the recipe cites; only its customer reads it."""
    family = recipe.family
    return family.tokenizer if isinstance(family, Decoder | Encoder) else None


def frozen(recipe: Recipe) -> BlobRef | None:
    """The weights that providers need besides theta: with an adapter what it stands beside, otherwise none."""
    return None if recipe.adapter is None else find_weights(recipe)


def header(shapes: Shapes) -> bytes:
    """All of the file that comes before the numbers."""
    entries, end = {}, 0
    for name in sorted(shapes):
        span = [end, end := end + 4 * prod(shapes[name])]
        entries[name] = {"dtype": CODE_OF["float32"], "shape": list(shapes[name]), "data_offsets": span}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def file_bytes(shapes: Shapes) -> int:
    """How long the file is."""
    return len(header(shapes)) + 4 * count(shapes)


def check(recipe: Recipe) -> None:
    """Raises BadRecipe: a file that the recipe cites cannot be of the size that it says."""
    cited, tokenizer = find_weights(recipe), tokenizer_of(recipe)
    if cited is not None and cited.bytes != (wanted := file_bytes(recipe.family.shapes())):
        raise BadRecipe("family.start", f"{cited.bytes} bytes, but the model's tensors are a file of {wanted}")
    if tokenizer is not None and tokenizer.bytes > MAX_TOKENIZER_BYTES:
        raise BadRecipe("family.tokenizer", f"{tokenizer.bytes} bytes, at most {MAX_TOKENIZER_BYTES}")
