"""The actor of the driver: tokenizer, embedding, head and sampling. It closes the ring of stages.

`prompt` (from the customer, UTF-8 bytes) gives hidden states for positions 0..P-1. Each frame that returns gives
a token for the customer and, unless it was the last, the hidden state of the position after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from nodewire.errors import BadFrame, BadInput, Busy, NotFound
from nodewire.kind import Params
from nodewire.llm.layers import rms_norm
from nodewire.llm.loading import DTYPES
from nodewire.llm.programs import EMBED, HEAD, NORM, DriverProgram
from nodewire.llm.sampling import Sampler
from nodewire.llm.text import Growing
from nodewire.llm.tokenizer import Tokenizer
from nodewire.protocol.frame import Frame, Meta


@dataclass(slots=True)
class _Session:
    params: Mapping[str, Any]
    sampler: Sampler
    text: Growing | None = None
    prompt: int = 0
    """Positions of the prompt."""
    seq: int = -1
    """The frame that is under way."""


class Driver:
    """One per manifest; sessions are independent. Raises BadInput for a prompt that does not fit the context."""

    def __init__(self, program: DriverProgram, weights: Mapping[str, torch.Tensor]) -> None:
        self._program = program
        self._tokenizer = Tokenizer(program.tokenizer)
        self._embed, self._norm = weights[EMBED], weights[NORM]
        self._head = weights.get(HEAD, self._embed)
        self._dtype = DTYPES[program.compute]
        self._sessions: dict[str, _Session] = {}

    def open(self, session: str, params: Params) -> None:
        if session in self._sessions:
            return
        if len(self._sessions) == self._program.slots:
            raise Busy("slots", f"all {self._program.slots} sessions are taken")
        sampler = Sampler(params.get("temperature", 0.0), params.get("top_p", 1.0), params.get("seed", 0))
        self._sessions[session] = _Session(params, sampler)

    def close(self, session: str) -> None:
        self._sessions.pop(session, None)

    @torch.inference_mode()
    def receive(self, session: str, frame: Frame[Any]) -> list[Frame[Any]]:
        state = self._sessions.get(session)
        if state is None:
            raise NotFound("session", "not open")
        if frame.edge == self._program.prompt:
            return [self._begin(state, frame)]
        if frame.edge == self._program.back:
            return self._step(state, frame)
        raise BadFrame("edge", f"{frame.edge[:40]!r} is not an input of the driver")

    def _begin(self, state: _Session, frame: Frame[Any]) -> Frame[Any]:
        if state.seq >= 0:
            raise BadFrame("prompt", "came twice")
        if len(frame.tensors) != 1 or frame.tensors[0].dtype != torch.uint8 or frame.tensors[0].ndim != 1:
            raise BadFrame("prompt", "not one tensor of bytes")
        try:
            text = bytes(frame.tensors[0].numpy()).decode()
        except UnicodeDecodeError as error:
            raise BadInput("prompt", "not UTF-8") from error
        ids = self._tokenizer.encode(text)
        room = self._program.positions - len(ids)
        if room < 1:
            raise BadInput("prompt", f"{len(ids)} tokens; the context has {self._program.positions} with the answer")
        if max(ids) >= self._program.config.vocab:
            raise BadInput("prompt", "the tokenizer gives ids beyond the vocabulary")
        state.text = Growing(self._tokenizer, self._program.config.eos, state.params, room)
        state.prompt, state.seq = len(ids), 0
        return self._hidden(ids, seq=0, pos=0, chunk=0, tokens=len(ids))

    def _step(self, state: _Session, frame: Frame[Any]) -> list[Frame[Any]]:
        if state.text is None or frame.seq != state.seq:
            raise BadFrame("seq", f"{frame.seq}, expected {state.seq}")
        x = frame.tensors[0] if len(frame.tensors) == 1 else None
        if (
            x is None
            or x.dtype != self._dtype
            or x.ndim != 2
            or x.shape[1] != self._program.config.hidden
            or not len(x)
        ):
            raise BadFrame("hidden", f"not one {self._dtype} tensor [n, {self._program.config.hidden}]")
        logits = F.linear(rms_norm(x[-1:], self._norm, self._program.config.eps), self._head)[0]
        if not bool(torch.isfinite(logits).all()):
            raise BadFrame("hidden", "gives logits that are not finite")
        token = state.sampler(logits)
        piece, reason = state.text.add(token)
        chunk = self._chunk(state.seq)
        meta: Meta = {
            "text": piece,
            "pos": state.prompt + state.seq,
            "chunk": chunk,
            "end": bool(reason),
            "reason": reason,
        }
        out = [Frame(self._program.tokens, state.seq, (torch.tensor([token]),), meta)]
        if not reason:
            state.seq += 1
            pos = state.prompt + state.seq - 1
            out.append(self._hidden([token], seq=state.seq, pos=pos, chunk=self._chunk(state.seq), tokens=1))
        return out

    def _chunk(self, seq: int) -> int:
        """Which payment covers frame `seq`: the prompt is chunk 0, then every `chunk` positions one."""
        return 0 if seq == 0 else 1 + (seq - 1) // self._program.chunk

    def _hidden(self, ids: list[int], *, seq: int, pos: int, chunk: int, tokens: int) -> Frame[Any]:
        x = F.embedding(torch.tensor(ids), self._embed)
        return Frame(self._program.hidden, seq, (x,), {"pos": pos, "chunk": chunk, "tokens": tokens})
