"""In what a model computes that runs on this machine alone: no manifest says it, so it is what is quick here."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from nodewire.weights.tensorfile import DTYPES

if TYPE_CHECKING:
    from nodewire.llm.checkpoint.checkpoint import Checkpoint
    from nodewire.llm.spec.config import DecoderConfig

MAX_ANGLES_BYTES = 2**30
"""Bytes of a table of angles: heads of 128 dimensions have 2,000,000 positions in it."""
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 2**10, "M": 2**20}


def arithmetic_here(checkpoint: Checkpoint, device: torch.device) -> Literal["float32", "bfloat16"]:
    """The dtype that loses nothing of the checkpoint's numbers, but float32 where bfloat16 would be slower.

    So a file whose blocks are widened says here what the same numbers in float32 say. Bfloat16 would be slower on a
    processor that does not multiply it, and of a model that its cache holds in float32. There a step waits for no
    memory, and has fewer operations (llm/layers/fast_cpu_step.py).
    """
    own = checkpoint.lossless_arithmetic
    if own == "float32" or checkpoint.config.quantization is not None or device.type != "cpu":
        return own
    count = sum(prod(one.shape) for one in checkpoint.tensors.values() if one.dtype in DTYPES)
    return "bfloat16" if _has_bfloat16() and 4 * count > cache_bytes() else "float32"


def positions_here(config: DecoderConfig, context: int | None = None) -> int:
    """Positions of a session: as many as are asked for, or as the model says it has.

    There are no more than a table of their angles has room for, which is made at once, however few are used: a model of
    a megabyte may say that it has two million.
    """
    each = 4 * config.rotary * (2 if config.rope_local_base_freq is not None else 1)
    most = config.max_position_embeddings
    return min(context or most, most, MAX_ANGLES_BYTES // each)


def cache_bytes() -> int:
    """The largest cache of a core, as Linux has it; 0 if it does not say."""
    sizes = [path.read_text().strip() for path in _CACHES.glob("index*/size")]
    return max((int(size[:-1]) * _UNITS[size[-1]] for size in sizes), default=0)


def _has_bfloat16() -> bool:
    capabilities = getattr(torch.cpu, "get_capabilities", None)
    found = capabilities() if capabilities is not None else {}
    return any(found.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
