"""The drivers of `bench.decode`'s ring over the internet by their names, and the frames in flight that fill a
ring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.decode.emulation.arms import Driver, Overlapping, Plain, Prompt, Synchronous
from bench.decode.emulation.product import Product
from bench.decode.emulation.stage import times
from bench.decode.emulation.truth import STAGES, Scripted, Truth
from bench.decode.emulation.virtual import turn_ms

Arm = Mapping[str, Any]
"""`arm`, one of the names below, with what it takes; `seed` and `alpha` of its truth."""


def driver_of(arm: Arm, stages: int = STAGES) -> tuple[Driver, Truth]:
    truth = Truth(arm["seed"], arm["alpha"], stages)
    begin = Scripted.begin(truth)
    match arm["arm"]:
        case "plain" | "relayed":
            return Plain(begin), truth
        case "synchronous":
            return Synchronous(begin, arm["k"]), truth
        case "overlapping":
            return Overlapping(begin, arm["k"], arm["depth"]), truth
        case "ours":
            return Product(begin, arm["lookahead"]), truth
        case "prompt":
            return Prompt(arm["size"], arm["block"]), truth
    raise ValueError(arm["arm"])


def window(stage_ms: float, width: int, fill: float) -> int:
    """Frames in flight that occupy every stage for `fill` of a turn."""
    took_ms = stage_ms * times(width)
    return max(1, round(fill * turn_ms(took_ms) / took_ms))
