"""The worker entry of `cheat`: kind 8843's own, but every stage does without its last layer.

That is what cheating is done for: less to compute, and numbers that look like the right ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from kinds import k8843_worker
from nodewire.kind import Actor, Limits
from nodewire.llm.stage import Stage


def load(engine: str, program: bytes, weights: Sequence[Path], limits: Limits) -> Actor:
    """The loaded task; a stage is short of a layer. Raises as kind 8843's `load`."""
    actor = k8843_worker.load(engine, program, weights, limits)
    if isinstance(actor, Stage):
        actor._layers.layers[-1] = Skipped()
    return actor


class Skipped:
    """Stands where a layer should."""

    def forward(self, x: torch.Tensor, *_: object) -> torch.Tensor:
        return x
