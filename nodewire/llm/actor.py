"""Loads a decoder's task: program and weights checked and measured before memory is taken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from nodewire.errors import BadTask, OverMemory
from nodewire.kind import Actor, Limits
from nodewire.llm.driver import Driver
from nodewire.llm.loading import load as load_weights
from nodewire.llm.programs import DriverProgram, StageProgram
from nodewire.llm.stage import Stage


def load(engine: str, program: bytes, weights: Sequence[Path], limits: Limits) -> Actor:
    """The actor of a `decoder.driver` or `decoder.stage` task.

    Raises:
        BadTask: program or weights are not what they must be, with the field or tensor at fault.
        OverMemory: it would not fit the limits.
    """
    parsed: DriverProgram | StageProgram
    match engine:
        case "decoder.driver":
            parsed = DriverProgram.unpack(program)
        case "decoder.stage":
            parsed = StageProgram.unpack(program)
        case _:
            raise BadTask("engine", f"{engine[:40]!r} is no decoder's")
    if parsed.memory_bytes() > limits.memory_bytes:
        raise OverMemory("memory", f"{parsed.memory_bytes()} bytes needed, {limits.memory_bytes} allowed")
    torch.set_num_threads(limits.threads)
    tensors = load_weights(weights, parsed.shapes(), stored=parsed.stored, compute=parsed.compute)
    return Driver(parsed, tensors) if isinstance(parsed, DriverProgram) else Stage(parsed, tensors)
