"""Data: what a customer's files hold, how it is dealt to shards, and which samples a step of a round sees.

A shard is all that a provider gets, and what it trains on at a step follows from (seed, round, shard index, step) and
the shard alone, so that any segment of a round can be computed again. nips/31-training-updates.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nodewire.errors import BadData, TooLarge
from nodewire.protocol.model.families import Decoder, Encoder
from nodewire.training.engine import draw, state
from nodewire.training.protocol.recipe import MAX_SHARDS, Recipe

if TYPE_CHECKING:
    from nodewire.training.engine.families import Batch

MAX_SHARD_BYTES = 2**32
GATHERED_BYTES = 4 * 2**20
"""Samples of so many bytes are gathered at a time, for several steps at once where they are small."""

Tensors = Mapping[str, Tensor]


def expected(recipe: Recipe) -> state.Types:
    """The tensors of a data set, shard or held-out set; the first dimension is as long as there are data.

    arrays: x float32 [n, inputs], y int64 [n] (float32 [n, classes] for squared_error). bytes: ids uint8 [n].
    tokens: ids int32 [n]. Pairs of texts: first and second int32 [n, window], padded on the right.
    """
    match recipe.family:
        case Decoder() as decoder:
            return {"ids": (torch.uint8 if decoder.tokens == "byte" else torch.int32, (-1,))}
        case Encoder():
            pairs = (torch.int32, (-1, recipe.data.window))
            return {"first": pairs, "second": pairs}
        case family:
            y = (torch.float32, (-1, family.classes)) if recipe.loss == "squared_error" else (torch.int64, (-1,))
            return {"x": (torch.float32, (-1, family.inputs)), "y": y}


def checked(recipe: Recipe, tensors: Tensors) -> Tensors:
    """The same tensors, if the recipe's model can be trained on them.

    Raises:
        BadData: empty, too short for one sample, of unlike lengths, or a value out of range; the tensor is named.

    """
    lengths = {len(tensor) for tensor in tensors.values()}
    if len(lengths) != 1:
        raise BadData("data", "its tensors are of unlike lengths")
    rows = lengths.pop()
    needed = recipe.data.window + 1 if isinstance(recipe.family, Decoder) else 1
    if rows < needed:
        raise BadData("data", f"{rows} long, but a sample takes {needed}" if rows else "empty")
    for name, tensor in tensors.items():
        if tensor.dtype == torch.float32:
            if not state.is_finite(tensor):
                row = _first(~tensor.reshape(rows, -1).isfinite())
                raise BadData(name, f"row {row} (the first is 0) has a number that is not finite")
        else:
            most = recipe.family.vocabulary if isinstance(recipe.family, Decoder | Encoder) else recipe.family.classes
            low, high = (int(bound) for bound in tensor.aminmax())
            if low < 0 or high >= most:
                row = _first(((tensor < 0) | (tensor >= most)).reshape(rows, -1))
                raise BadData(name, f"row {row} (the first is 0) is out of range: not from 0 to {most - 1}")
    if isinstance(recipe.family, Encoder) and any((t[:, 0] == recipe.family.pad).any() for t in tensors.values()):
        raise BadData("data", "a text without tokens")
    return tensors


def _first(bad: Tensor) -> int:
    """The first row [rows, n] that has something bad."""
    return int(bad.any(1).int().argmax())


@dataclass(frozen=True)
class Shard:
    """What one provider trains on, or what is held out."""

    tensors: Tensors

    @property
    def packed(self) -> bytes:
        """The shard as safetensors bytes."""
        return state.pack(self.tensors)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of `packed`: 64 hex digits."""
        digest = hashlib.sha256()
        for part in state.parts(self.tensors):
            digest.update(part)
        return digest.hexdigest()

    @classmethod
    def unpack(cls, data: bytes, recipe: Recipe) -> Shard:
        """The shard in bytes that a customer sent.

        Raises:
            TooLarge: over 4 GiB, or a header longer than the layout has.
            BadData: not of the recipe's layout, or values that its model does not take.

        """
        if len(data) > MAX_SHARD_BYTES:
            raise TooLarge("shard", f"{len(data)} bytes, at most {MAX_SHARD_BYTES}")
        return cls.from_tensors(state.unpack(data, expected(recipe), field="shard"), recipe)

    @classmethod
    def from_tensors(cls, tensors: Tensors, recipe: Recipe) -> Shard:
        """The shard of these tensors (`expected`). Raises BadData: values that the recipe's model does not take."""
        return cls(checked(recipe, tensors))

    def __len__(self) -> int:
        """Rows, bytes or tokens."""
        return len(next(iter(self.tensors.values())))


class Split(NamedTuple):
    shards: list[Shard]
    held_out: Shard


def split(dataset: Tensors, k: int, recipe: Recipe) -> Split:
    """The data set dealt to `k` shards, and what all of them lack, to validate on.

    Blocks (rows, where the layout has rows) are shuffled by the recipe's seed, or not, as `data.deal` says; every
    `data.held_out`-th is held out; of the rest shard i gets each k-th from i on, or the i-th stretch if contiguous.

    Raises:
        BadData: too few blocks for so many shards, or a shard too short for a sample.

    """
    if not 1 <= k <= MAX_SHARDS:
        raise BadData("shards", f"{k}, not from 1 to {MAX_SHARDS}")
    spec = recipe.data
    block = spec.block if isinstance(recipe.family, Decoder) else 1
    length = len(next(iter(dataset.values())))
    blocks = -(-length // block)
    places = np.arange(blocks)
    ordered = draw.order(blocks, "split", recipe.seed) if spec.deal == "shuffled" else places
    held = places % spec.held_out == spec.held_out // 2
    kept, out = ordered[~held], ordered[held]
    if len(kept) < k or not len(out):
        raise BadData("data", f"{blocks} blocks are too few for {k} shards and every {spec.held_out}th held out")
    dealt = [kept[i::k] for i in range(k)] if spec.deal == "shuffled" else np.array_split(kept, k)

    def shard(chosen: np.ndarray) -> Shard:
        chosen = np.sort(chosen)
        if block > 1:
            inside = (chosen[:, None] * block + np.arange(block)).reshape(-1)
            chosen = inside[inside < length]
        rows = torch.from_numpy(np.ascontiguousarray(chosen))
        return Shard(checked(recipe, {name: tensor.index_select(0, rows) for name, tensor in dataset.items()}))

    return Split([shard(chosen) for chosen in dealt], shard(out))


def batches(shard: Shard, recipe: Recipe, round: int, index: int, first: int = 0, last: int = -1) -> Iterator[Batch]:
    """The batches of steps first .. last-1 of a round on shard number `index` (all of the recipe's, without end).

    Rows: the shard's permutations, one after the other, one per epoch of the round. Text: windows that begin
    anywhere, drawn afresh for every step.
    """
    last = recipe.steps if last < 0 else last
    rows = _starts if isinstance(recipe.family, Decoder) else _rows
    take = _taker(shard, recipe)
    at_once = max(1, GATHERED_BYTES // (recipe.batch * _sample_bytes(shard, recipe)))
    for begin in range(first, last, at_once):
        steps = min(at_once, last - begin)
        gathered = take(rows(len(shard), recipe, round, index, begin, steps))
        yield from zip(*(torch.split(tensor, recipe.batch) for tensor in gathered), strict=True)


def samples(shard: Shard, recipe: Recipe, most: int) -> Batch:
    """At most `most` samples spread evenly over a shard: what losses are measured on."""
    window = recipe.data.window + 1 if isinstance(recipe.family, Decoder) else 1
    places = len(shard) - window + 1
    count = min(most, places)
    return _taker(shard, recipe)(np.arange(count, dtype=np.int64) * places // count)


def _rows(length: int, recipe: Recipe, round: int, index: int, step: int, steps: int) -> np.ndarray:
    """Row numbers of the steps, [steps x batch]."""
    begin, end = step * recipe.batch, (step + steps) * recipe.batch
    epochs = range(begin // length, -(-end // length))
    parts = [
        _epoch(length, recipe.seed, round, index, epoch)[max(0, begin - epoch * length) : end - epoch * length]
        for epoch in epochs
    ]
    return np.concatenate(parts)


@lru_cache(maxsize=2)
def _epoch(length: int, seed: int, round: int, index: int, epoch: int) -> np.ndarray:
    """A shard's rows in an epoch's order; kept, because a round asks for it segment by segment."""
    return draw.order(length, "rows", seed, round, index, epoch).astype(np.int32)  # a shard has fewer than 2^31


def _starts(length: int, recipe: Recipe, round: int, index: int, step: int, steps: int) -> np.ndarray:
    """First positions of the steps' windows, [steps x batch]."""
    places = np.uint64(length - recipe.data.window)
    drawn = [draw.words(recipe.batch, "windows", recipe.seed, round, index, s) for s in range(step, step + steps)]
    return (np.concatenate(drawn) % places).astype(np.int64)


def _taker(shard: Shard, recipe: Recipe) -> Callable[[np.ndarray], Batch]:
    """A function from row numbers (or first positions) to the tensors of a batch."""
    if isinstance(recipe.family, Decoder):
        window, ids = torch.arange(recipe.data.window + 1), shard.tensors["ids"]
        return lambda rows: (ids[torch.from_numpy(rows)[:, None] + window].long(),)
    columns = list(shard.tensors.values())
    if isinstance(recipe.family, Encoder):
        return lambda rows: tuple(column.index_select(0, torch.from_numpy(rows)).long() for column in columns)
    return lambda rows: tuple(column.index_select(0, torch.from_numpy(rows)) for column in columns)


def _sample_bytes(shard: Shard, recipe: Recipe) -> int:
    if isinstance(recipe.family, Decoder):
        return 8 * (recipe.data.window + 1)
    width = sum(tensor[0].numel() for tensor in shard.tensors.values())
    return 8 * width
