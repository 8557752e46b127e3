"""The worker entry of graph models: loads a task, and runs it once for each `seq` that all its edges have delivered."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from nodewire.core.bounded_dict import BoundedDict
from nodewire.errors import BadFrame, BadInput, BadTask, Busy, NodewireError, NotAllowed, NotFound, TooLarge
from nodewire.graph.compile import CompiledProgram, find
from nodewire.graph.encoder import DriverProgram, EncoderDriver
from nodewire.graph.program.format import Input, Program, Weight
from nodewire.graph.program.interpreter import Interpreter, bind, check_dims
from nodewire.graph.program.liveness import corners, walk
from nodewire.graph.program.origins import origins
from nodewire.graph.program.verification import MAX_VERIFY_S, VerifiedProgram, verify, verify_weights
from nodewire.protocol.tensors.frame import Frame, Meta
from nodewire.taskgraph.batch_axis import batch_dim
from nodewire.taskgraph.program import GraphProgram

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nodewire.kind import Actor, Limits

_log = logging.getLogger("nodewire.graph")
MAX_PENDING = 1_024
"""Calls of one session that may wait for frames of further edges."""
_REMEMBERED_SIZES = 4_096
_FRAME_BYTES = 512
"""That a waiting frame takes without its tensors; there may be many of none."""

Tensors = Frame[torch.Tensor]


def load(engine: str, program: bytes, weights: Sequence[Path], limits: Limits) -> Actor:
    """The actor of a task. Everything is checked, on the meta device, before its weights are read.

    Raises:
        BadTask, BadVersion, TooLarge: the program or its weights are not what the whitelist and its own types allow.
        OverMemory: its peak at the largest sizes is above `limits.memory_bytes`.

    """
    torch.set_num_threads(limits.threads)
    if engine == "encoder.driver":
        if weights:
            raise BadTask("weights", "a driver of an encoder has none")
        return EncoderDriver(DriverProgram.decode(program))
    if engine != "graph":
        raise BadTask("engine", f"{engine[:40]!r} is not one of graph, encoder.driver")
    decoded = Program.decode(program)
    verify_weights(decoded, weights)
    verified = verify(decoded, limits.memory_bytes, limits.threads)
    held = _read(decoded, weights, limits.device)
    return GraphActor(verified, held, limits, _compiled(program, decoded, held, limits))


def _compiled(
    data: bytes, program: Program, weights: Mapping[str, torch.Tensor], limits: Limits
) -> CompiledProgram | None:
    """The task's library, where the operator allows it, has made one, and it says what the interpreter says."""
    if not limits.compiled or limits.device != "cpu":
        return None
    try:
        return find(data, program, weights, Path(limits.compiled), limits.threads)
    except (NotFound, NotAllowed, BadTask) as error:
        _log.warning("a task is interpreted: %s", error)
        return None


def _read(program: Program, files: Sequence[Path], device: str) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for index, path in enumerate(files):
        try:
            with safe_open(path, framework="pt", device=device) as file:
                for weight in program.weights:
                    if weight.file == index:
                        tensors[weight.name] = _as_declared(weight, file.get_tensor(weight.name))
        except SafetensorError as error:  # it is stricter than `verification.header` about JSON
            raise BadTask("weights", f"not a safetensors file: {str(error)[:120]}") from error
    return tensors


def _as_declared(weight: Weight, tensor: torch.Tensor) -> torch.Tensor:
    """The weight, as the library found it. Bytes other than 0 and 1 are undefined as bool, and may be anything."""
    if tensor.dtype != weight.dtype or tuple(tensor.shape) != weight.shape:
        raise BadTask(weight.name, f"read as {tensor.dtype} {list(tensor.shape)}")
    return tensor.view(torch.uint8).ne(0) if tensor.dtype == torch.bool else tensor


@dataclass(slots=True)
class _Session:
    pending: dict[int, dict[str, Tensors]] = field(default_factory=dict)


class GraphActor:
    """A stateless task: the frames of one `seq` on all its input edges make one call.

    Frames that wait for others share what `limits.memory_bytes` leaves above the task's peak.
    """

    def __init__(
        self,
        verified: VerifiedProgram,
        weights: Mapping[str, torch.Tensor],
        limits: Limits,
        compiled: CompiledProgram | None = None,
    ) -> None:
        self._program = verified.program
        self._compiled = compiled
        self._interpreter = Interpreter(verified.program, weights, limits.device)
        self._memory_bytes, self._threads = limits.memory_bytes, limits.threads
        self.held_bytes, self.call_bytes = verified.weight_bytes, verified.live_bytes
        self._spare_bytes = limits.memory_bytes - verified.peak_bytes
        self._waiting_bytes = 0
        self._sizes = BoundedDict[tuple[int, ...], None](_REMEMBERED_SIZES)
        for sizes in corners(self._program):
            self._sizes[_key(self._program, sizes)] = None
        self._inputs: dict[str, list[Input]] = {}
        for declared in self._program.inputs:
            self._inputs.setdefault(declared.edge, []).append(declared)
        self._origins = origins(self._program)
        self._batch = batch_dim(GraphProgram.decode(self._program.encode()))
        self._edges = tuple(dict.fromkeys(out.edge for out in self._program.outputs))
        self._sessions: dict[str, _Session] = {}

    def open(self, session: str, params: Mapping[str, Any]) -> None:
        if session not in self._sessions and len(self._sessions) >= self._program.slots:
            raise Busy("slots", f"all {self._program.slots} are taken")
        self.close(session)
        self._sessions[session] = _Session()

    def receive(self, session: str, frame: Tensors) -> list[Tensors]:
        state = self._sessions.get(session)
        if state is None:
            raise NotFound("session", "not open")
        expected = self._inputs.get(frame.edge)
        if expected is None:
            raise BadFrame("edge", f"{frame.edge[:64]!r} does not lead here")
        if len(frame.tensors) != len(expected):
            raise BadFrame(frame.edge, f"{len(frame.tensors)} tensors, {len(expected)} expected")
        have = state.pending.get(frame.seq, {})
        if frame.edge in have:
            raise BadFrame(frame.edge, f"seq {frame.seq} came twice")
        if len(have) + 1 < len(self._inputs):
            self._wait(state, frame)
            return []
        state.pending.pop(frame.seq, None)
        self._waiting_bytes -= sum(_nbytes(waiting) for waiting in have.values())
        return self._call(frame.seq, {**have, frame.edge: frame})

    @property
    def batches(self) -> bool:
        """Whether calls of several sessions may be computed as one: each row of a batch is made of itself alone."""
        return self._batch is not None

    def receive_together(self, calls: Sequence[tuple[str, Sequence[Tensors]]]) -> list[list[Tensors] | NodewireError]:
        """What `receive` answers to the frames of each call, all edges' of one seq, or the error that it raises.

        They are computed as one as far as their sizes other than the batch's are the same, and the program admits so
        many rows. What is wrong with one costs the others nothing but time.
        """
        if len(calls) > 1 and self._batch is not None:
            try:
                return list(self._batched(calls, self._batch))
            except NodewireError:
                half = len(calls) // 2
                return [*self.receive_together(calls[:half]), *self.receive_together(calls[half:])]
        return [self._alone(session, frames) for session, frames in calls]

    def _alone(self, session: str, frames: Sequence[Tensors]) -> list[Tensors] | NodewireError:
        try:
            return [answer for frame in frames for answer in self.receive(session, frame)]
        except NodewireError as error:
            return error

    def _batched(self, calls: Sequence[tuple[str, Sequence[Tensors]]], batch: str) -> Iterator[list[Tensors]]:
        bound = []
        for session, frames in calls:
            by_edge = {frame.edge: frame for frame in frames}
            if session not in self._sessions or by_edge.keys() != self._inputs.keys() or len(frames) != len(by_edge):
                raise BadFrame("edge", "not one frame of each")
            if len({frame.seq for frame in frames}) > 1:
                raise BadFrame("seq", "not the same on all edges")
            bound.append((frames[0].seq, *self._bound(by_edge)))
        dims = [of for _, _, _, of in bound]
        if any({**one, batch: 0} != {**dims[0], batch: 0} for one in dims):
            raise BadFrame("shape", "not the same but for the batch")
        rows = [one[batch] for one in dims]
        together = {**dims[0], batch: sum(rows)}
        check_dims(self._program, together)
        self._admit(together)
        inputs = {name: torch.cat([one[name] for _, _, one, _ in bound]) for name in bound[0][2]}
        results = self._computed(inputs, together)
        parts = {name: torch.split(tensor, rows) for name, tensor in results.items()}
        for k, (seq, meta, _, _) in enumerate(bound):
            yield self._answers(seq, meta, {name: part[k] for name, part in parts.items()})

    def close(self, session: str) -> None:
        state = self._sessions.pop(session, None)
        for frames in state.pending.values() if state else ():
            self._waiting_bytes -= sum(_nbytes(frame) for frame in frames.values())

    def _wait(self, state: _Session, frame: Tensors) -> None:
        if frame.seq not in state.pending and len(state.pending) >= MAX_PENDING:
            raise TooLarge("pending", f"{MAX_PENDING} calls already wait for frames of other edges")
        if self._waiting_bytes + _nbytes(frame) > self._spare_bytes:
            raise TooLarge("pending", f"over {self._spare_bytes} bytes wait for frames of other edges")
        self._waiting_bytes += _nbytes(frame)
        state.pending.setdefault(frame.seq, {})[frame.edge] = frame

    def _call(self, seq: int, frames: Mapping[str, Tensors]) -> list[Tensors]:
        try:
            meta, inputs, dims = self._bound(frames)
            self._admit(dims)
            return self._answers(seq, meta, self._computed(inputs, dims))
        except BadInput as error:
            raise self._with_edges(error) from error

    def _with_edges(self, error: BadInput) -> BadInput:
        """The error with the edges, as its field, whose frames may be what is wrong, as far as that is known."""
        edges = sorted(self._origins.get(error.field, ()))
        return type(error)(" ".join(edges), str(error)) if edges else error

    def _bound(self, frames: Mapping[str, Tensors]) -> tuple[Meta, dict[str, torch.Tensor], dict[str, int]]:
        """A call's meta, its inputs by name, and its dims. Raises BadFrame, BadInput, TooLarge."""
        meta = _common(frames.values())
        if any(len(frame.tensors) != len(self._inputs[edge]) for edge, frame in frames.items()):
            raise BadFrame("tensors", "another number than the edge has")
        inputs = {
            declared.name: tensor.to(self._interpreter.device)
            for edge, frame in frames.items()
            for declared, tensor in zip(self._inputs[edge], frame.tensors, strict=True)
        }
        return meta, inputs, bind(self._program, inputs)

    def _computed(self, inputs: Mapping[str, torch.Tensor], dims: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """The outputs by value, at sizes whose memory was admitted."""
        if self._compiled is not None and self._compiled.admits(dims):
            with suppress(BadTask):  # it refuses, or had no memory: the interpreter says why, or answers
                return self._compiled(inputs, dims)
        return self._interpreter(inputs, dims)

    def _answers(self, seq: int, meta: Meta, results: Mapping[str, torch.Tensor]) -> list[Tensors]:
        return [
            Frame(
                edge,
                seq,
                tuple(results[out.value].contiguous().cpu() for out in self._program.outputs if out.edge == edge),
                meta,
            )
            for edge in self._edges
        ]

    def _admit(self, dims: Mapping[str, int]) -> None:
        """Check the memory at sizes not seen before: a hostile program may take more at smaller ones."""
        key = _key(self._program, dims)
        if key not in self._sizes:
            walk(self._program, dims, self._memory_bytes, self._threads, longest_s=MAX_VERIFY_S)
            self._sizes[key] = None


def _key(program: Program, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sizes[name] for name in program.dims)


def _nbytes(frame: Tensors) -> int:
    return _FRAME_BYTES + sum(tensor.nbytes for tensor in frame.tensors)


def _common(frames: Any) -> Meta:
    """The meta of frames that belong together.

    Raises:
        BadFrame: two of them disagree.

    """
    meta: dict[str, int | str | bytes | bool | None] = {}
    for frame in frames:
        for key, value in frame.meta.items():
            if meta.setdefault(key, value) != value:
                raise BadFrame("meta", f"{key[:40]!r} is not the same on all edges")
    return meta
