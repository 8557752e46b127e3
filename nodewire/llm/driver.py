"""The driver: embedding, head, tokenizer and sampling as an actor, once around the ring for every token.

A prompt comes from the customer; its hidden states go to the first stage as frame 0; each return of the last stage's
hidden state becomes one token, which goes to the customer and, as the next frame, around the ring again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from nodewire.errors import BadFrame, BadInput, NotAllowed, NotFound, TooLarge
from nodewire.kind import Params
from nodewire.llm import frames
from nodewire.llm.kv.slots import Slots
from nodewire.llm.loader import Fill
from nodewire.llm.programs import DriverProgram
from nodewire.llm.sampling import Sampling, choose, parse_params
from nodewire.llm.textstream import TextStream
from nodewire.llm.tokenizer import Tokenizer
from nodewire.llm.vocabulary import Vocabulary
from nodewire.protocol.frame import Frame
from nodewire.weights.tensorfile import DTYPES

Reason = Literal["length", "stop", "eos"]


@dataclass(slots=True)
class _Session:
    sampling: Sampling
    text: TextStream
    prompt: int = 0  # its positions; 0 until it came
    generated: int = 0  # tokens so far, and the seq of the return awaited
    ended: Reason | None = field(default=None)


def chunk_of(seq: int, size: int) -> int:
    """The chunk that pays for frame `seq`: 0 is the prompt's, then one for every `size` tokens."""
    return 0 if seq == 0 else 1 + (seq - 1) // size


class Driver:
    """An Actor (nodewire.kind)."""

    def __init__(self, program: DriverProgram, fill: Fill, tokenizer: Tokenizer, device: torch.device) -> None:
        self.program = program
        self._dtype = DTYPES[program.dtype]
        self._vocabulary = Vocabulary(program.config, self._dtype, device, fill)
        self._tokenizer = tokenizer
        self._device = device
        self._slots = Slots(program.slots)
        self._sessions: dict[str, _Session] = {}

    def open(self, session: str, params: Params) -> None:
        """Raises BadInput naming a parameter (see sampling.parse_params), Busy, NotAllowed."""
        sampling = parse_params(params, self.program.positions)
        self._slots.open(session)
        self._sessions[session] = _Session(sampling, TextStream(self._tokenizer, sampling.stop))

    def close(self, session: str) -> None:
        self._slots.close(session)
        self._sessions.pop(session, None)

    @torch.inference_mode()
    def receive(self, session: str, frame: Frame[Any]) -> list[Frame[Any]]:
        """A prompt, or a return: see the two methods below.

        Raises:
            NotFound: the session is not open.
            NotAllowed: a second prompt, a return that is not awaited, or anything after the end.
            BadFrame, BadInput, TooLarge: the frame or the prompt cannot be used; the field says why.
        """
        state = self._sessions.get(session)
        if state is None:
            raise NotFound("session", "not open")
        if state.ended is not None:
            raise NotAllowed("session", f"ended ({state.ended})")
        if frame.edge == self.program.edge_prompt:
            return self._prompt(state, frame)
        if frame.edge == self.program.edge_return:
            return self._return(state, frame)
        raise BadFrame("edge", f"{frame.edge[:64]} is not one that this task consumes")

    def _prompt(self, state: _Session, frame: Frame[Any]) -> list[Frame[Any]]:
        """Text (meta, or uint8 [bytes] of UTF-8) or int64 ids [n] in; hidden states [1, n, width] out, seq 0, pos 0.

        After the text's tensor there may be a second one, int64 [m]: tokens that an earlier session, which broke off,
        generated from this text. Their own text is not put out again; what follows is as if they had come here.
        """
        if state.prompt or frame.seq != 0:
            raise NotAllowed("prompt", "a session has one, with seq 0")
        ids = self._prompt_ids(frame, special_tokens=state.sampling.special_tokens)
        if len(frame.tensors) == 2:
            history = frame.tensors[1]
            if not isinstance(history, torch.Tensor) or history.dtype != torch.int64 or history.ndim != 1:
                raise BadFrame("history", "not int64 [m]")
            if len(ids) + len(history) < self.program.positions:  # else refused below
                self._check_ids(history)
                for token in history.tolist():
                    state.text.push(token)
            ids = torch.cat((ids, history))
        n = len(ids)
        if n == 0:
            raise BadInput("prompt", "empty")
        if n >= self.program.positions:
            raise TooLarge("prompt", f"{n} tokens, the context is {self.program.positions}, one is generated at least")
        self._check_ids(ids)
        state.prompt = n
        return [self._hidden(ids, seq=0, pos=0)]

    def _check_ids(self, ids: torch.Tensor) -> None:
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= self.program.config.vocab_size):
            raise BadInput("prompt", f"an id is not in the vocabulary of {self.program.config.vocab_size}")

    def _prompt_ids(self, frame: Frame[Any], *, special_tokens: bool) -> torch.Tensor:
        if not frame.tensors:
            text = frame.meta.get("text")
            if not isinstance(text, str):
                raise BadInput("prompt", "neither text nor token ids")
            return torch.tensor(self._tokenizer.encode(text, special_tokens=special_tokens), dtype=torch.int64)
        ids = frame.tensors[0] if len(frame.tensors) == 2 else frames.only_tensor(frame)
        if ids.dtype == torch.uint8 and ids.ndim == 1:
            try:
                text = bytes(ids.numpy()).decode()
            except UnicodeDecodeError as error:
                raise BadInput("prompt", "not UTF-8") from error
            return torch.tensor(self._tokenizer.encode(text, special_tokens=special_tokens), dtype=torch.int64)
        if ids.dtype != torch.int64 or ids.ndim != 1:
            raise BadFrame("prompt", f"{ids.dtype} of rank {ids.ndim}, neither uint8 nor int64 [n]")
        return ids

    def _return(self, state: _Session, frame: Frame[Any]) -> list[Frame[Any]]:
        """Hidden state [1, 1, width] of the newest position in; its token out, and unless it ends, the next frame."""
        if not state.prompt or frame.seq != state.generated:
            raise NotAllowed("return", f"seq {frame.seq} is not awaited")
        pos = state.prompt + state.generated
        x = frames.hidden_states(frame, self._dtype, self.program.config.hidden_size, positions=1)
        if frames.count(frame, "pos") != pos - 1:
            raise BadFrame("meta.pos", f"not {pos - 1}, the newest position")
        logits = self._vocabulary.logits(x.to(self._device))
        frames.check_finite(logits)
        token = choose(logits, state.sampling, pos)
        state.generated += 1
        text, state.ended = self._speak(state, token, pos)
        ids = torch.tensor([token], dtype=torch.int64)
        meta: dict[str, int | str | bytes | bool | None] = {
            "text": text,
            "pos": pos,
            "chunk": chunk_of(frame.seq, self.program.chunk),
            "end": state.ended is not None,
        }
        if state.ended is not None:
            return [Frame(self.program.edge_tokens, frame.seq, (ids,), meta | {"reason": state.ended})]
        told = Frame(self.program.edge_tokens, frame.seq, (ids,), meta)
        # The ring first: the next token waits for it, the customer's copy does not.
        return [self._hidden(ids, seq=state.generated, pos=pos), told]

    def _speak(self, state: _Session, token: int, pos: int) -> tuple[str, Reason | None]:
        """The text that `token` makes printable, and why the session ends with it, if it does."""
        if token in self.program.config.eos_token_id:
            return state.text.flush(), "eos"
        text = state.text.push(token)
        if state.text.stopped:
            return text, "stop"
        if state.generated >= state.sampling.max_tokens or pos + 1 >= self.program.positions:
            return text + state.text.flush(), "length"
        return text, None

    def _hidden(self, ids: torch.Tensor, *, seq: int, pos: int) -> Frame[Any]:
        meta = {"pos": pos, "chunk": chunk_of(seq, self.program.chunk), "tokens": len(ids)}
        return Frame(self.program.edge_hidden, seq, (self._vocabulary.embed(ids).cpu(),), meta)
