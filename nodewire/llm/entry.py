"""The entry of a worker process: a verified program and weights in, an actor out."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from nodewire.errors import BadHash, BadInput, BadTask, OverMemory
from nodewire.llm.checkpoint.loader import open_weights
from nodewire.llm.cuda_graphs.capture import CudaGraphs
from nodewire.llm.cuda_graphs.runner import Graphing, graph_maker
from nodewire.llm.driver import Driver
from nodewire.llm.programs import memory_estimate
from nodewire.llm.programs.programs import DriverProgram, StageProgram
from nodewire.llm.speculation.draft_model import Draft
from nodewire.llm.stage import Stage
from nodewire.llm.tokens.tokenizer import Tokenizer
from nodewire.protocol.model.manifest import REFERENCE_ENGINE
from nodewire.text.detokenizer import MAX_TOKENIZER_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.kind import Actor, Limits
    from nodewire.llm.programs.memory_estimate import Footprint
    from nodewire.protocol.tensors.frame import Frame


def load(engine: str, program: bytes, weights: Sequence[Path], limits: Limits) -> Actor:
    """Load a decoder's task. Everything is checked before memory is taken for it.

    `weights` are files verified by hash: of tensors and, last of a driver's, the tokenizer.json.

    Raises:
        BadTask, BadVersion, TooLarge: the program, or the weights' header, is not what it must be (the field says).
        BadHash: the tokenizer is not the one that the program cites.
        OverMemory: the task needs more than `limits.memory_bytes`.
        BadConfig: the draft model that `limits` names is none, or has other tokens than the driver's.

    """
    device = _device(limits)
    if engine == REFERENCE_ENGINE:
        return ReferenceStage(_stage(_in_float32(program), weights, device, replace(limits, graphs=False)))
    if engine == "decoder.stage":
        return _stage(StageProgram.unpack(program), weights, device, limits)
    if engine == "decoder.driver":
        driver = DriverProgram.unpack(program)
        driver = driver.model_copy(update={"slots": limits.slots or driver.slots})
        if not weights:
            raise BadTask("weights", "no files: a driver has its tokenizer.json")
        *ends, tokenizer = weights
        _check_memory(driver_footprint(driver).total, limits)
        text = _tokenizer(driver, tokenizer)
        draft = Draft(Path(limits.draft), driver, text) if limits.draft else None
        if draft is None:
            return Driver(driver, open_weights(ends, driver.tensors), Tokenizer(text), device)
        need = driver_footprint(driver).total + draft.footprint.total
        _check_memory(need, limits, " with its draft model")
        fill, spoken = open_weights(ends, driver.tensors), Tokenizer(text)
        return Driver(driver, fill, spoken, device, draft.load(spoken, device, _graphing(device, limits, need)))
    raise BadTask("engine", f"{engine[:64]!r} is not a decoder's")


class ReferenceStage:
    """An Actor that computes a stage of narrower numbers in float32: what goes in and comes out is float32, too."""

    def __init__(self, stage: Actor) -> None:
        self._stage = stage
        self.open, self.close = stage.open, stage.close

    def receive(self, session: str, frame: Frame[torch.Tensor]) -> Sequence[Frame[torch.Tensor]]:
        """As `Stage.receive`."""
        wide = tuple(t.float() if t.is_floating_point() else t for t in frame.tensors)
        return self._stage.receive(session, replace(frame, tensors=wide))


def _stage(program: StageProgram, weights: Sequence[Path], device: torch.device, limits: Limits) -> Stage:
    program = program.model_copy(update={"slots": limits.slots or program.slots})
    need = stage_footprint(program).total
    if need > limits.memory_bytes:
        each = need - stage_footprint(program.model_copy(update={"slots": program.slots - 1})).total
        fit = program.slots - -(-(need - limits.memory_bytes) // each)
        said = f": {fit} would fit" if fit > 0 else ""
        _check_memory(need, limits, f" with {program.slots} sessions of {program.positions} positions", said)
    return Stage(program, open_weights(weights, program.tensors), device, _graphing(device, limits, need))


def _in_float32(program: bytes) -> StageProgram:
    """The stage's program with float32 arithmetic, keys and values included. Raises BadTask: it has no such form."""
    narrow = StageProgram.unpack(program)
    return StageProgram.from_document(narrow.model_copy(update={"dtype": "float32", "kv": None}).document())


def stage_footprint(program: StageProgram) -> Footprint:
    return memory_estimate.stage(
        program.config,
        program.first,
        program.last,
        memory_estimate.LaneSpec(program.slots, program.positions, program.block, program.dtype, program.kv),
        program.ends,
    )


def driver_footprint(program: DriverProgram) -> Footprint:
    return memory_estimate.driver(
        program.config,
        positions=program.positions,
        dtype=program.dtype,
        tokenizer_bytes=program.tokenizer.bytes,
        ends=program.ends,
    )


def _check_memory(need: int, limits: Limits, beside: str = "", remedy: str = "") -> None:
    if need > limits.memory_bytes:
        raise OverMemory("memory_bytes", f"the task{beside} needs {need}, the limit is {limits.memory_bytes}{remedy}")


def _tokenizer(program: DriverProgram, path: Path) -> bytes:
    if program.tokenizer.bytes > MAX_TOKENIZER_BYTES or path.stat().st_size != program.tokenizer.bytes:
        raise BadTask("tokenizer", f"not the {program.tokenizer.bytes} bytes that the program cites, or too many")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != program.tokenizer.sha256:
        raise BadHash("tokenizer", "not the file that the program cites")
    return data


def _graphing(device: torch.device, limits: Limits, need: int) -> Graphing | None:
    """Captured steps have what the task, which needs so much, leaves of the limit."""
    if device.type != "cuda" or not limits.graphs:
        return None
    return graph_maker(CudaGraphs(device), limits.memory_bytes - need)


def _device(limits: Limits) -> torch.device:
    try:
        device = torch.device(limits.device)
    except RuntimeError as error:
        raise BadInput("device", f"{limits.device[:40]!r} is not a device") from error
    torch.set_num_threads(limits.threads)
    return device
