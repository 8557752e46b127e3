"""The worker entry of kinds 8840 to 8842: a shard's training, or an outer step, at its provider.

At a customer it is a whole training's arithmetic. Imported by workers only. Tensors come and go as safetensors bytes,
in pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# As in k8843_worker: nothing can be imported once the worker is locked in, and the optimizers' first step would.
import torch._dynamo
import torch.optim  # noqa: F401

from nodewire.errors import BadTask
from nodewire.training.engine.actors.auditor import AuditorActor
from nodewire.training.engine.actors.coordinator import CoordinatorActor
from nodewire.training.engine.actors.outer_step import OuterActor
from nodewire.training.engine.actors.trainer import TrainerActor
from nodewire.training.protocol.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nodewire.kind import Actor, Limits


def load(engine: str, program: bytes, weights: Sequence[Path], limits: Limits) -> Actor:
    """The trainer, the outer step, the coordinator or the auditor. Raises BadTask, BadRecipe, BadData."""
    if engine == "trainer":
        return TrainerActor(limits)
    if engine == "outer":
        return OuterActor(limits)
    if engine == "coordinator":
        folder, *begun = weights
        return CoordinatorActor(Recipe.unpack(program), folder, *begun[:1], threads=limits.threads)
    if engine == "auditor":
        return AuditorActor(Recipe.unpack(program), weights)
    raise BadTask("engine", f"{engine[:40]!r} is not trainer, outer, coordinator or auditor")
