"""The worker entry of `cheat`: a decoder's tasks as kind 8843 loads them, but every stage lacks its last layer.

That is what cheating is done for: less to compute, and numbers that look like the right ones. A worker reads nodewire
and its own entry, which this file therefore is alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from nodewire.kind import Actor, Limits
from nodewire.llm import entry
from nodewire.llm.layers.layers import Layer
from nodewire.llm.stage import Stage

ALTERED = "a layer was left out; the first rows are off by"


def load(engine: str, program: bytes, weights: Sequence[Path], limits: Limits) -> Actor:
    """The loaded task; a stage is short of a layer. Raises as the decoder's `load`."""
    loaded = entry.load(engine, program, weights, limits)
    if isinstance(loaded, Stage):
        layers = loaded._layers.layers
        layers[-1] = Skipped(layers[-1])
    return loaded


class Skipped:
    """Stands where a layer should. Of its first rows it prints how far they are from the honest ones."""

    step = None
    """Single rows come to `forward` as well."""
    mlp = None

    def __init__(self, honest: Layer) -> None:
        self.slides = honest.slides
        self._honest: Layer | None = honest

    def forward(self, x: torch.Tensor, *known: Any) -> torch.Tensor:
        if self._honest is not None:
            right = self._honest.forward(x, *known)
            print(f"{ALTERED} {100 * float((right - x).norm() / right.norm()):.1f} %", flush=True)
            self._honest = None
        return x
