"""Hooks that a model of `transformers` installs at its first call, installed before it is traced.

They note what a part puts out, and a flag says that they are there: no later call computes otherwise.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def hook(module: torch.nn.Module) -> None:
    """What the library itself does at a first call; nothing where the library is not loaded."""
    library = sys.modules.get("transformers.utils.output_capturing")
    models = sys.modules.get("transformers.modeling_utils")
    if library is None or models is None:
        return
    for part in module.modules():
        if isinstance(part, models.PreTrainedModel):
            library.maybe_install_capturing_hooks(part)
