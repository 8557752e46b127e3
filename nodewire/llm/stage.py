"""The stage: a decoder's layers [first, last) as an actor, with a KV lane per session.

A frame carries hidden states [1, n, width] and `pos`, the position of the first of them. A `pos` below the lane's
length rewinds it: what stood there is overwritten, which is all that rejected speculation or a replay needs.
"""

from __future__ import annotations

from typing import Any

import torch

from nodewire.errors import BadFrame, TooLarge
from nodewire.kind import Params
from nodewire.llm import frames
from nodewire.llm.kv.lanes import Lanes
from nodewire.llm.kv.slots import Slots
from nodewire.llm.layers import Layers
from nodewire.llm.loader import Fill
from nodewire.llm.programs import StageProgram
from nodewire.protocol.frame import Frame
from nodewire.weights.tensorfile import DTYPES


class Stage:
    """An Actor (nodewire.kind). The session's parameters are the driver's business and are not read here."""

    def __init__(self, program: StageProgram, fill: Fill, device: torch.device) -> None:
        self.program = program
        self._device = device
        self._dtype = DTYPES[program.dtype]
        count = program.last - program.first
        self._layers = Layers(
            program.config,
            program.first,
            program.last,
            positions=program.positions,
            block=program.block,
            dtype=self._dtype,
            device=device,
            fill=fill,
        )
        self._lanes = Lanes(program.config, count, program.slots, program.positions, self._dtype, device)
        self._slots = Slots(program.slots)
        self._lengths: dict[str, int] = {}

    def open(self, session: str, params: Params) -> None:
        """Take a lane. Raises Busy, NotAllowed."""
        self._slots.open(session)
        self._lengths[session] = 0

    def close(self, session: str) -> None:
        self._slots.close(session)
        self._lengths.pop(session, None)

    @torch.inference_mode()
    def receive(self, session: str, frame: Frame[Any]) -> list[Frame[Any]]:
        """Hidden states in, hidden states out with the same `seq` and `chunk`.

        Raises:
            NotFound: the session is not open.
            BadFrame: another edge, dtype or shape, numbers that are not finite, or a `pos` beyond what is cached.
            TooLarge: positions beyond the program's.
        """
        program = self.program
        lane = self._slots.slot(session)
        if frame.edge != program.edge_in:
            raise BadFrame("edge", f"{frame.edge[:64]}, this task consumes {program.edge_in}")
        x = frames.hidden_states(frame, self._dtype, program.config.hidden_size, program.positions)
        pos, chunk, n = frames.count(frame, "pos"), frames.count(frame, "chunk"), x.shape[1]
        if pos > self._lengths[session]:
            raise BadFrame("meta.pos", f"{pos}, only {self._lengths[session]} positions came before")
        if pos + n > program.positions:
            raise TooLarge("meta.pos", f"up to position {pos + n}, at most {program.positions}")
        # Until the frame is computed only what it does not touch is valid.
        self._lengths[session] = pos
        y = self._layers.forward(x.to(self._device), pos, self._lanes, lane, only_last=program.closes)
        frames.check_finite(y)
        self._lengths[session] = pos + n
        meta = {"pos": pos + n - y.shape[1], "chunk": chunk, "tokens": y.shape[1]}
        return [Frame(program.edge_out, frame.seq, (y.cpu(),), meta)]
