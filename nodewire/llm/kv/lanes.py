"""KV lanes: one preallocated cache per slot, handed to sessions, never grown.

All memory is taken when the task is loaded; opening a session only picks a free lane. A lane's `length` positions are
valid; what lies beyond is never read, so a rewind is a smaller length and a released lane needs no clearing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nodewire.llm.config import DecoderConfig
from nodewire.llm.kv.past import How, attention


class Lanes:
    """`keys` and `values`: per layer [slots, kv_heads, positions, head_dim]."""

    def __init__(
        self, config: DecoderConfig, layers: int, slots: int, positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (slots, config.num_key_value_heads, positions, config.head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.numbers = torch.arange(positions, device=device)

    def past(self, lane: int, pos: int, n: int) -> LanePast:
        """What `n` rows at positions pos .. build on: a lane's first `pos` positions."""
        return LanePast(self, lane, pos, n)


class LanePast:
    """A Past (nodewire.llm.kv.past): one session, its positions one after the other in one lane."""

    def __init__(self, lanes: Lanes, lane: int, pos: int, n: int) -> None:
        self.positions = lanes.numbers[pos : pos + n]
        self._lanes, self._lane, self._pos, self._end = lanes, lane, pos, pos + n
        self._masks: dict[int, Tensor] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
        pos, end, n = self._pos, self._end, len(q)
        keys, values = self._lanes.keys[layer][self._lane], self._lanes.values[layer][self._lane]
        keys[:, pos:end] = k.transpose(0, 1)
        values[:, pos:end] = v.transpose(0, 1)
        first = max(0, pos + 1 - how.window) if how.window else 0  # of what the first row sees
        slides = how.window and end > how.window  # whether the last row no longer sees all
        mask = self._mask(first, how.window) if n > 1 and (pos or slides) else None
        causal = n > 1 and mask is None
        return attention(q, keys[:, first:end], values[:, first:end], mask, how, causal=causal)

    def _mask(self, first: int, window: int) -> Tensor:
        """bool [n, end - first]: each row sees up to its own position, and of that the last `window`."""
        found = self._masks.get(window)
        if found is None:
            rows, cells = self.positions[:, None], self._lanes.numbers[first : self._end]
            found = cells <= rows
            if window:
                found &= cells > rows - window
            self._masks[window] = found
        return found
