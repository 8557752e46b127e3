"""What models of a kind are called with, and how large: read off config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from nodewire.errors import BadInput
from nodewire.graph.families.encoder_directory import AFTER_PADDING
from nodewire.graph.program.format import Input, Shape
from nodewire.graph.trace.examples import BATCH, Leaf, Signature

SEQUENCE, TARGET, IMAGES = "sequence", "target", "images"
_IMAGE_SIZE = 224
"""Where config.json does not say: what a residual net was trained on."""
_LENGTH = 512


@dataclass(frozen=True, slots=True)
class Largest:
    """The most that one call may hold: items, and positions of each, if the model has as many."""

    batch: int = 32
    length: int = 2_048


LARGEST = Largest()
ANY = Largest(2**20, 2**20)
"""As much as the model itself has positions for."""

Called = Callable[[Any, Largest], Signature]
"""From a configuration of `transformers`."""


def widened(said: Signature, most: Mapping[str, int], limits: Mapping[str, int]) -> Signature:
    """With the sizes of `most`, which one call then holds together, as it holds the longest item.

    Raises:
        BadInput: a name is no size that varies, or the model takes less than is asked.

    """
    for dim, size in most.items():
        if dim not in said.dims:
            raise BadInput("most", f"{dim[:80]!r} is no size that varies: {', '.join(said.dims)}")
        if not 1 <= size <= limits[dim]:
            raise BadInput("most", f"{dim} {size}: from 1 to {limits[dim]}")
    dims = {**said.dims, **most}
    together = prod(size for dim, size in dims.items() if dim in most or dim not in (BATCH, IMAGES))
    return replace(said, dims=dims, least=together)


def text(config: Any, largest: Largest) -> Signature:
    """Ids, their mask and, where the model has several, types of tokens."""
    names = ["input_ids", "attention_mask"]
    if getattr(config, "type_vocab_size", 0) > 1:
        names.append("token_type_ids")
    return _called(_ids(names, SEQUENCE), {BATCH: largest.batch, SEQUENCE: _positions(config, largest)})


def causal(config: Any, largest: Largest) -> Signature:
    """Ids and their mask; no cache, since a task keeps nothing between calls."""
    dims = {BATCH: largest.batch, SEQUENCE: _positions(config, largest)}
    return _called(_ids(["input_ids", "attention_mask"], SEQUENCE), dims, use_cache=False)


def text_to_text(config: Any, largest: Largest) -> Signature:
    length = _positions(config, largest)
    inputs = _ids(["input_ids", "attention_mask"], SEQUENCE) | _ids(["decoder_input_ids"], TARGET)
    return _called(inputs, {BATCH: largest.batch, SEQUENCE: length, TARGET: length}, use_cache=False)


def speech_to_text(config: Any, largest: Largest) -> Signature:
    """A window of sound as log-mel features, of one length, and the ids so far."""
    shape: Shape = (BATCH, config.num_mel_bins, 2 * config.max_source_positions)
    inputs = {"input_features": (torch.float32, shape)} | _ids(["decoder_input_ids"], TARGET)
    dims = {BATCH: largest.batch, TARGET: min(config.max_target_positions, largest.length)}
    return _called(inputs, dims, use_cache=False)


def image(config: Any, largest: Largest) -> Signature:
    return _called({"pixel_values": (torch.float32, (BATCH, *_image(config)))}, {BATCH: largest.batch})


def image_and_text(config: Any, largest: Largest) -> Signature:
    """Any number of texts and, independently, of images."""
    pixels: tuple[torch.dtype, Shape] = (torch.float32, (IMAGES, *_image(config.vision_config)))
    inputs = _ids(["input_ids", "attention_mask"], SEQUENCE) | {"pixel_values": pixels}
    length = _positions(config.text_config, largest)
    return _called(inputs, {BATCH: largest.batch, SEQUENCE: length, IMAGES: largest.batch})


def _ids(names: list[str], length: str) -> dict[str, tuple[torch.dtype, Shape]]:
    return dict.fromkeys(names, (torch.int64, (BATCH, length)))


def _called(types: Mapping[str, tuple[torch.dtype, Shape]], dims: Mapping[str, int], **constants: Any) -> Signature:
    inputs = tuple(Input(name, dtype, shape) for name, (dtype, shape) in types.items())
    one_item = prod(most for dim, most in dims.items() if dim not in (BATCH, IMAGES))
    arguments = {i.name: Leaf(i) for i in inputs} | constants
    return Signature(inputs, dims, arguments, positional=0, least=one_item)


def _positions(config: Any, largest: Largest) -> int:
    """The longest text; positions of some families begin after that of padding."""
    most = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or _LENGTH
    if config.model_type in AFTER_PADDING:
        most -= config.pad_token_id + 1
    if not isinstance(most, int) or most < 1:
        raise BadInput("max_position_embeddings", f"{most!r} is no length")
    return min(most, largest.length)


def _image(config: Any) -> tuple[int, int, int]:
    size = getattr(config, "image_size", None) or _IMAGE_SIZE
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return config.num_channels, height, width
