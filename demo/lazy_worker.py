"""The worker entry of `cheat`: a decoder's tasks as kind 8843 loads them, but every stage lacks its last layer.

That is what cheating is done for: less to compute, and numbers that look like the right ones. A worker reads nodewire
and its own entry, which this file therefore is alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch._dynamo  # as kinds.k8843_worker does: everything is imported before the sandbox

from nodewire.kind import Actor, Limits
from nodewire.llm import actor
from nodewire.llm.stage import Stage


def load(engine: str, program: bytes, weights: Sequence[Path], limits: Limits) -> Actor:
    """The loaded task; a stage is short of a layer. Raises as the decoder's `load`."""
    loaded = actor.load(engine, program, weights, limits)
    if isinstance(loaded, Stage):
        loaded._layers.layers[-1] = Skipped()
    return loaded


class Skipped:
    """Stands where a layer should."""

    slides = False

    def forward(self, x: torch.Tensor, *_: object) -> torch.Tensor:
        return x
