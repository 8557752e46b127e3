"""The actor of a stage: some layers, and a KV cache for each session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nodewire.errors import BadFrame, Busy, NotFound
from nodewire.kind import Params
from nodewire.llm.layers import Rotary, decode_layer, layer_of
from nodewire.llm.loading import DTYPES
from nodewire.llm.programs import StageProgram
from nodewire.protocol.frame import Frame


@dataclass(slots=True)
class _Lane:
    """One session's keys and values, [layers, kv_heads, positions, head_dim], the first `length` positions valid."""

    keys: torch.Tensor
    values: torch.Tensor
    length: int = 0


class Stage:
    """Answers every frame of hidden states [n, hidden] with one. A frame's `pos` says where it starts: a position that
    was there already is overwritten and everything after it forgotten, which is how a session is rolled back."""

    def __init__(self, program: StageProgram, weights: Mapping[str, torch.Tensor]) -> None:
        self._program = program
        self._layers = [layer_of(weights, i) for i in range(program.first, program.last)]
        self._dtype = DTYPES[program.compute]
        self._rotary = Rotary(program.config, program.positions, self._dtype)
        self._sessions: dict[str, _Lane] = {}
        self._idle: list[_Lane] = []

    def open(self, session: str, params: Params) -> None:
        if session in self._sessions:
            return
        if len(self._sessions) == self._program.slots:
            raise Busy("slots", f"all {self._program.slots} sessions are taken")
        lane = self._idle.pop() if self._idle else self._new_lane()
        lane.length = 0
        self._sessions[session] = lane

    def close(self, session: str) -> None:
        lane = self._sessions.pop(session, None)
        if lane is not None:
            self._idle.append(lane)

    @torch.inference_mode()
    def receive(self, session: str, frame: Frame[Any]) -> list[Frame[Any]]:
        lane = self._sessions.get(session)
        if lane is None:
            raise NotFound("session", "not open")
        x, start = self._check(frame, lane)
        c = self._program.config
        for layer, keys, values in zip(self._layers, lane.keys, lane.values, strict=True):
            x = decode_layer(layer, c, x, self._rotary, keys, values, start)
        lane.length = start + x.shape[0]
        if self._program.tail:
            x = x[-1:]
        if not bool(torch.isfinite(x).all()):
            raise BadFrame("hidden", "gives values that are not finite")
        return [Frame(self._program.output, frame.seq, (x,), frame.meta)]

    def _check(self, frame: Frame[Any], lane: _Lane) -> tuple[torch.Tensor, int]:
        if frame.edge != self._program.input or len(frame.tensors) != 1:
            raise BadFrame("edge", f"{frame.edge[:40]!r} is not this stage's input")
        x, start = frame.tensors[0], frame.meta.get("pos")
        if x.dtype != self._dtype or x.ndim != 2 or x.shape[1] != self._program.config.hidden or not x.shape[0]:
            raise BadFrame(
                "hidden", f"{x.dtype} {list(x.shape)}, expected {self._dtype} [n, {self._program.config.hidden}]"
            )
        if type(start) is not int or not 0 <= start <= lane.length:
            raise BadFrame("pos", f"{start!r} leaves a gap after {lane.length} positions")
        if start + x.shape[0] > self._program.positions:
            raise BadFrame("pos", f"beyond the session's {self._program.positions} positions")
        return x, start

    def _new_lane(self) -> _Lane:
        c, p = self._program.config, self._program
        shape = (p.last - p.first, c.kv_heads, p.positions, c.head_dim)
        return _Lane(torch.zeros(shape, dtype=self._dtype), torch.zeros(shape, dtype=self._dtype))
