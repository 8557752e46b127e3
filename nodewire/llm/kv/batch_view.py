"""What the rows of one forward build on: each a Past over the lanes of their sessions.

Past is nodewire.llm.kv.attention_context's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from nodewire.llm.kv.attention_context import AttentionOptions, Past, attention
from nodewire.llm.kv.speculative_tree import MAX_LIVE_CELLS, Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.llm.kv.alibi import Slopes
    from nodewire.llm.kv.sequence_cache import Lane


class Chain:
    """Rows at positions pos .. pos + n - 1 of a lane, each after the one before it: they overwrite what stood there."""

    def __init__(self, lane: Lane, pos: int, n: int) -> None:
        self.positions = self.angles = lane.lanes.numbers[pos : pos + n]
        if lane.angles:
            self.angles = lane.lanes.numbers[lane.angles + pos : lane.angles + pos + n]
        self._lane, self._pos, self._end = lane, pos, pos + n
        self._masks: dict[int, Tensor] = {}
        self._biases: dict[int, Tensor] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: AttentionOptions) -> Tensor:
        pos, end, n = self._pos, self._end, len(q)
        self._lane.write(layer, pos, k, v)
        first = max(0, pos + 1 - how.window) if how.window else 0  # of what the first row sees
        slides = how.window and end > how.window  # whether the last row no longer sees all
        mask = self._mask(first, how.window) if n > 1 and (pos or slides or how.alibi is not None) else None
        if how.alibi is not None:
            mask = self._bias(how.alibi, first, how.window, mask)
        keys, values = self._lane.read(layer, first, end)
        return attention(q, keys, values, mask, how, causal=n > 1 and mask is None)

    def attend_alone(self, layer: int, q: Tensor, both: Tensor, how: AttentionOptions) -> Tensor:
        """`attend` of a single row, without soft caps, sinks and ALiBi.

        It takes `q` [1, kv_heads, group, head_dim] and its keys and values `both` [2, kv_heads, head_dim] to [heads *
        head_dim].
        """
        self._lane.write_row(layer, self._pos, both)
        first = max(0, self._end - how.window) if how.window else 0
        keys, values = self._lane.read(layer, first, self._end)
        return F.scaled_dot_product_attention(q, keys[None], values[None], scale=how.scale).view(-1)

    def _mask(self, first: int, window: int) -> Tensor:
        """A mask, bool [n, end - first]: each row sees up to its own position, and of that the last `window`."""
        found = self._masks.get(window)
        if found is None:
            rows, cells = self.positions[:, None], self._lane.lanes.numbers[first : self._end]
            found = cells <= rows
            if window:
                found &= cells > rows - window
            self._masks[window] = found
        return found

    def _bias(self, alibi: Slopes, first: int, window: int, mask: Tensor | None) -> Tensor:
        """float32 [heads, n, end - first]."""
        found = self._biases.get(window)
        if found is None:
            cells = self._lane.lanes.numbers[first : self._end]
            found = self._biases[window] = alibi.bias(cells, self.positions, mask)
        return found


class Branches:
    """Rows that are cells first .. first + n - 1 of `tree`, which is the lane's, or has grown out of it.

    Each sees the committed run and the cells that lead to it.
    """

    def __init__(self, lane: Lane, tree: Tree, first: int, n: int) -> None:
        cells = first + n
        self._stand = torch.tensor(tree.positions[:cells], device=lane.lanes.numbers.device)
        self.positions = self._stand[first:]
        self.angles = self.positions + lane.angles if lane.angles else self.positions
        self._lane, self._first, self._end = lane, lane.length + first, lane.length + cells
        self._lowest, self._highest = min(tree.positions[first:cells]), max(tree.positions[first:cells])
        self._leads = bits(tree.seen[first:cells], cells).to(lane.lanes.numbers.device)
        self._is_chain = n == 1 and tree.seen[first] == (1 << cells) - 1
        self._masks: dict[int, Tensor] = {}
        self._biases: dict[int, Tensor] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: AttentionOptions) -> Tensor:
        self._lane.write(layer, self._first, k, v)
        first = max(0, self._lowest + 1 - how.window) if how.window else 0
        first = min(first, self._lane.length)
        sees_all = self._is_chain and not (how.window and self._highest - first >= how.window)
        mask = None if sees_all else self._mask(first, how.window)
        if how.alibi is not None:
            mask = self._bias(how.alibi, first, how.window, mask)
        keys, values = self._lane.read(layer, first, self._end)
        return attention(q, keys, values, mask, how, causal=False)

    def _mask(self, first: int, window: int) -> Tensor:
        """The mask, bool [n, end - first]."""
        found = self._masks.get(window)
        if found is None:
            committed = self._lane.lanes.numbers[first : self._lane.length]
            found = torch.cat((committed.new_ones(len(self._leads), len(committed), dtype=torch.bool), self._leads), 1)
            if window:
                found &= torch.cat((committed, self._stand)) > self.positions[:, None] - window
            self._masks[window] = found
        return found

    def _bias(self, alibi: Slopes, first: int, window: int, mask: Tensor | None) -> Tensor:
        """float32 [heads, n, end - first]."""
        found = self._biases.get(window)
        if found is None:
            stand = torch.cat((self._lane.lanes.numbers[first : self._lane.length], self._stand))
            found = self._biases[window] = alibi.bias(stand, self.positions, mask)
        return found


class Several:
    """The rows of several pasts, one after the other: what is computed of each row alone is computed at once."""

    def __init__(self, pasts: Sequence[Past]) -> None:
        self.positions = self.angles = torch.cat([past.positions for past in pasts])
        if any(past.angles is not past.positions for past in pasts):
            self.angles = torch.cat([past.angles for past in pasts])
        self._pasts, self._counts = pasts, [len(past.positions) for past in pasts]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: AttentionOptions) -> Tensor:
        parts = zip(self._pasts, *(torch.split(rows, self._counts) for rows in (q, k, v)), strict=True)
        return torch.cat([past.attend(layer, *part, how) for past, *part in parts])


def together(pasts: Sequence[Past]) -> Past:
    """One past of the rows of all."""
    return pasts[0] if len(pasts) == 1 else Several(pasts)


def bits(numbers: Sequence[int], count: int) -> Tensor:
    """The lowest `count` bits of each number, bool [numbers, count]."""
    packed = bytearray(b"".join(number.to_bytes(MAX_LIVE_CELLS // 8, "little") for number in numbers))
    octets = torch.frombuffer(packed, dtype=torch.uint8).view(len(numbers), -1, 1)
    return (octets >> torch.arange(8, dtype=torch.uint8) & 1).bool().flatten(1)[:, :count]
