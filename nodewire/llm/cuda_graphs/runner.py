"""Steps of decoding that are captured once and replayed, so that a GPU does not wait for Python at each operation.

A step's shape is a grid's (kv/static_buffers.py). One that was met a few times is captured, over buffers of its own;
the one that was used longest ago makes room for it. What has no such shape, prompts above all, is computed as ever.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nodewire.core.bounded_dict import BoundedDict
from nodewire.kind import CAPTURED_BYTES
from nodewire.llm.kv.sequence_cache import Lanes
from nodewire.llm.kv.static_buffers import Grid, Shape, Span, shape_of
from nodewire.llm.layers.layers import Layers
from nodewire.llm.programs import memory_estimate

if TYPE_CHECKING:
    from nodewire.llm.cuda_graphs.capture import Capture, Replay

MOST = 24
"""Captured steps of one task."""
MET = 3
"""With which meeting a shape is captured."""
log = logging.getLogger("nodewire.llm")


@dataclass(frozen=True, slots=True)
class StepEnds:
    """What a step has before and after the layers.

    `inputs` are of so many rows. Beside them stands what makes hidden states [rows, width] of them, and what is made of
    those after the last layer. `rowwise`: one for each row.
    """

    inputs: Callable[[int], Tensor]
    enter: Callable[[Tensor], Tensor]
    leave: Callable[[Tensor], Tensor]
    rowwise: bool


def hidden_around(width: int, dtype: torch.dtype, device: torch.device) -> StepEnds:
    """A stage's: hidden states in and out."""
    return StepEnds(lambda rows: torch.zeros(rows, width, dtype=dtype, device=device), lambda x: x, lambda y: y, True)


@dataclass(slots=True)
class _CapturedGraph:
    grid: Grid
    inputs: Tensor
    out: Tensor
    replay: Replay


Graphing = Callable[[Layers, Lanes, StepEnds], "Graphs"]
"""Makes those of a task."""


def graph_maker(capture: Capture, room_bytes: int = CAPTURED_BYTES) -> Graphing:
    """`room_bytes`: what captured steps may take, as far as it can be told before."""
    return lambda layers, lanes, around: Graphs(layers, lanes, around, capture, room_bytes)


class Graphs:
    """Those of one task's layers and lanes. `off` says why nothing is captured, or nothing more; "" while it is."""

    def __init__(self, layers: Layers, lanes: Lanes, around: StepEnds, capture: Capture, room_bytes: int) -> None:
        self._layers, self._lanes, self._around, self._capture = layers, lanes, around, capture
        self._room_bytes = min(room_bytes, CAPTURED_BYTES)
        self._met: Counter[Shape] = Counter()
        self._captured = BoundedDict[Shape, _CapturedGraph](MOST)
        self.replays = 0
        self.off = ""
        if (reason := layers.uncapturable) is not None:
            self._give_up(reason)

    def __len__(self) -> int:
        return len(self._captured)

    @torch.inference_mode()
    def run(self, rows: Tensor, spans: Sequence[Span]) -> Tensor | None:
        """The spans' rows, or the last one's, after what `StepEnds` does; None: they are computed without a graph."""
        if self.off or (shape := shape_of(spans)) is None:
            return None
        found = self._captured.get(shape)
        if found is None:
            self._met[shape] += 1
            if self._met[shape] < MET or self._bytes(shape) > self._room_bytes:
                return None
            return self._first(shape, rows, spans)
        self._captured.move_to_end(shape)
        _fill(found, rows, spans)
        found.replay()
        self.replays += 1
        return self._taken(found, spans)

    def _first(self, shape: Shape, rows: Tensor, spans: Sequence[Span]) -> Tensor | None:
        """Capture a step; what it writes to the lanes is what any run of it would."""
        grid, inputs = Grid(self._lanes, shape), self._around.inputs(shape.lanes * shape.rows)
        out: list[Tensor] = []

        def step() -> None:
            grid.begin()
            made = self._around.leave(self._layers.captured(self._around.enter(inputs), grid))
            if not out:
                out.append(torch.empty_like(made))
            out[0].copy_(made)
            grid.end()

        found = _CapturedGraph(grid, inputs, inputs, step)
        _fill(found, rows, spans)
        try:
            step()
            found.replay = self._capture(step)
        except RuntimeError as error:  # of memory, too
            self._give_up(f"{type(error).__name__}: {error}"[:300])
            return None
        found.out = out[0]
        self._captured[shape] = found
        found.replay()
        return self._taken(found, spans)

    def _taken(self, found: _CapturedGraph, spans: Sequence[Span]) -> Tensor:
        """A copy: the next replay overwrites it."""
        if not self._around.rowwise:
            return found.out.clone()
        n, counts = found.grid.shape.rows, [len(span.positions) for span in spans]
        if n == 1:
            return found.out[: len(spans)].clone()
        return torch.cat([found.out[n * place + n - count : n * (place + 1)] for place, count in enumerate(counts)])

    def _give_up(self, reason: str) -> None:
        self.off = reason
        self._captured.clear()
        log.warning("decode steps are not captured: %s", reason)

    def _bytes(self, shape: Shape) -> int:
        return memory_estimate.captured(self._layers.config, shape.lanes, shape.rows, shape.cells, self._layers.item)


def _fill(captured: _CapturedGraph, rows: Tensor, spans: Sequence[Span]) -> None:
    captured.grid.set(spans)
    n, at = captured.grid.shape.rows, 0
    if n == 1:
        captured.inputs[: len(rows)].copy_(rows)
        return
    for place, span in enumerate(spans):
        count = len(span.positions)
        captured.inputs[n * (place + 1) - count : n * (place + 1)].copy_(rows[at : at + count])
        at += count
