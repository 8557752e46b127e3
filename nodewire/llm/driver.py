"""The driver: embedding, head, tokenizer and sampling as an actor, once around the ring for every token.

A prompt comes from the customer; its hidden states go to the first stage as frame 0; each return of the last stage's
hidden state becomes one token, which goes to the customer and, as the next frame, around the ring again. With a
`lookahead` guesses of further tokens follow it (nodewire.llm.speculation), so that one turn may bring many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from nodewire.errors import BadFrame, BadInput, NotAllowed, NotFound, TooLarge, Unsupported
from nodewire.llm import session_checks
from nodewire.llm.layers import frame_checks
from nodewire.llm.layers.embedding_head import Vocabulary
from nodewire.llm.speculation.in_flight_tree import Flight, InFlightFrame
from nodewire.llm.speculation.ngram_proposer import NgramDrafter
from nodewire.llm.speculation.proposer import Drafter
from nodewire.llm.speculation.scheduler import DraftScheduler
from nodewire.llm.tokens.grammar import Grammars
from nodewire.llm.tokens.sampler import Sampler
from nodewire.llm.tokens.sampling_params import Sampling, parse_params
from nodewire.protocol.model.kv_pages import Room
from nodewire.protocol.model.token_list import EXCUSED
from nodewire.protocol.speculation.frame_meta import packed
from nodewire.protocol.tensors.frame import Frame, chunk_of_turn
from nodewire.text.stream import TextStream
from nodewire.weights.tensorfile import DTYPES

if TYPE_CHECKING:
    from nodewire.kind import Params
    from nodewire.llm.checkpoint.loader import Fill
    from nodewire.llm.programs.programs import DriverProgram
    from nodewire.llm.tokens.tokenizer import Tokenizer

Reason = Literal["length", "stop", "eos"]
MakeDrafters = Callable[[Sampler], Sequence[Drafter[Any]]]
"""Those of one session, the fast ones first."""


@dataclass(slots=True)
class _Session:
    sampling: Sampling
    sampler: Sampler
    text: TextStream | None  # read for stop strings; None where there are none
    scheduler: DraftScheduler | None  # None where nothing is guessed
    pages: int  # that it takes
    flight: Flight | None = None  # None until the prompt came
    prompt: int = 0  # its positions
    generated: int = 0  # tokens so far
    ended: Reason | None = field(default=None)

    @property
    def awaits(self) -> bool:
        """Whether anything is in flight; after the end, guesses may be."""
        return self.flight is not None and self.flight.awaited is not None


def _at(listed: Sequence[int | None], number: int) -> int | None:
    return listed[number] if number < len(listed) else None


class Driver:
    """An Actor (nodewire.kind)."""

    def __init__(
        self,
        program: DriverProgram,
        fill: Fill,
        tokenizer: Tokenizer,
        device: torch.device,
        make_drafters: MakeDrafters | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Guesses are those of `make_drafters`, by default what the session's own text says.

        One that lends its ends fills nothing.
        """
        self.program = program
        self._make_drafters = make_drafters or (lambda sampler: [NgramDrafter()])
        self._clock_ns = clock_ns
        self._dtype = DTYPES[program.dtype]
        self._vocabulary = Vocabulary(program.config, self._dtype, device, fill, program.ends)
        self._tokenizer = tokenizer
        self._device = device
        self._grammars = Grammars(tokenizer, program.config.vocab_size, program.config.eos_token_id)
        self._room = Room(program.slots, program.positions)
        self._sessions: dict[str, _Session] = {}

    def open(self, session: str, params: Params) -> None:
        """Raises as `session_checks.check`; Busy; BadInput naming a parameter; Unsupported.

        Of parameters see sampling.parse_params. Unsupported: one needs logits, where none come.
        """
        sampling = parse_params(params, self.program.positions)
        if self.program.lends and (wanted := sampling.needs_logits) is not None:
            raise Unsupported(wanted, "this model's head is at its last stage, which answers the likeliest token alone")
        sampler = self._sampler(sampling)
        session_checks.check(session, self._sessions)
        ends = frozenset(self.program.config.eos_token_id)
        scheduler = (
            DraftScheduler(self._make_drafters(sampler), ends, self._clock_ns) if sampling.lookahead > 1 else None
        )
        text = TextStream(self._tokenizer, sampling.stop) if sampling.stop else None
        pages = self._room.allocate(sampling.positions)
        self._sessions[session] = _Session(sampling, sampler, text, scheduler, pages)

    def _sampler(self, sampling: Sampling) -> Sampler:
        """Raises BadInput, Unsupported, Busy: a bias or a schema that cannot be, or not now."""
        schema = sampling.json_schema
        size = self.program.config.vocab_size
        return Sampler(sampling, size, self._grammars.grammar(schema) if schema else None)

    def close(self, session: str) -> None:
        state = self._sessions.pop(session, None)
        if state is not None:
            self._room.give(state.pages)

    @torch.inference_mode()
    def receive(self, session: str, frame: Frame[Any]) -> list[Frame[Any]]:
        """A prompt, or a return: see the two methods below.

        Raises:
            NotFound: the session is not open.
            NotAllowed: a second prompt, a return that is not awaited, or anything after the end but what was in flight.
            BadFrame, BadInput, TooLarge: the frame or the prompt cannot be used; the field says why.

        """
        state = self._sessions.get(session)
        if state is None:
            raise NotFound("session", "not open")
        if state.ended is not None and state.sampling.said is not None:
            return []  # whoever is judged went on: it said something else
        if state.ended is not None and (frame.edge != self.program.edge_return or not state.awaits):
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
        if state.flight is not None or frame.seq != 0:
            raise NotAllowed("prompt", "a session has one, with seq 0")
        ids = self._prompt_ids(state, frame)
        history = self._history(frame)
        n = len(ids) + len(history)
        if n == 0:
            raise BadInput("prompt", "empty")
        if n >= state.sampling.positions:
            raise TooLarge("prompt", f"{n} tokens, {self._said_room(state)}, one is generated at least")
        self._check_ids(ids)
        self._check_ids(history)
        state.sampler.begin(ids)
        for number, token in enumerate(history.tolist()):
            if state.text is not None:
                state.text.push(token)
            try:
                state.sampler.accept(token)
            except BadInput as error:  # the schema is not at fault: who made this token had it, too
                raise BadInput(
                    "history", f"token {number} does not follow its {error.field}: {error.reason}"[:200]
                ) from error
        ids = torch.cat((ids, history))
        state.prompt = n
        tree, lookahead = state.scheduler is not None, state.sampling.lookahead
        state.flight = Flight(n, int(ids[-1]), lookahead, tree=tree, chunk=self.program.chunk)
        if state.scheduler is not None:
            for token in ids.tolist():
                state.scheduler.accept(token)
        meta = {"pos": 0, "chunk": 0, "tokens": n}
        return [Frame(self.program.edge_hidden, 0, (self._rows(ids),), meta)]

    def _history(self, frame: Frame[Any]) -> Tensor:
        if len(frame.tensors) != 2:
            return torch.empty(0, dtype=torch.int64)
        history = frame.tensors[1]
        if not isinstance(history, Tensor) or history.dtype != torch.int64 or history.ndim != 1:
            raise BadFrame("history", "not int64 [m]")
        return history.cpu()

    def _check_ids(self, ids: torch.Tensor) -> None:
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= self.program.config.vocab_size):
            raise BadInput("prompt", f"an id is not in the vocabulary of {self.program.config.vocab_size}")

    def _said_room(self, state: _Session) -> str:
        of = "context" if state.sampling.positions == self.program.positions else "session"
        return f"the {of} is {state.sampling.positions}"

    def _encoded(self, state: _Session, text: str) -> torch.Tensor:
        """Text that cannot fit is not read: that takes as long as it is, and all sessions wait for it."""
        if len(text) > state.sampling.positions * self._tokenizer.longest:
            room = f"{self._said_room(state)} tokens of at most {self._tokenizer.longest}"
            raise TooLarge("prompt", f"{len(text)} characters, {room}")
        ids = self._tokenizer.encode(text, special_tokens=state.sampling.special_tokens)
        return torch.tensor(ids, dtype=torch.int64)

    def _prompt_ids(self, state: _Session, frame: Frame[Any]) -> torch.Tensor:
        if not frame.tensors:
            text = frame.meta.get("text")
            if not isinstance(text, str):
                raise BadInput("prompt", "neither text nor token ids")
            return self._encoded(state, text)
        ids = (frame.tensors[0] if len(frame.tensors) == 2 else frame_checks.only_tensor(frame)).cpu()
        if ids.dtype == torch.uint8 and ids.ndim == 1:
            try:
                text = bytes(ids.numpy()).decode()
            except UnicodeDecodeError as error:
                raise BadInput("prompt", "not UTF-8") from error
            return self._encoded(state, text)
        if ids.dtype != torch.int64 or ids.ndim != 1:
            raise BadFrame("prompt", f"{ids.dtype} of rank {ids.ndim}, neither uint8 nor int64 [n]")
        return ids

    def _return(self, state: _Session, frame: Frame[Any]) -> list[Frame[Any]]:
        """What came of a frame's n rows in, and the tokens that follow from them out.

        In come hidden states [1, n, width], or where the head is lent the likeliest ids, [1, n, 1]; of the prompt's
        rows the last position's. Each token is a frame, and before them, unless it ends, goes what goes around the ring
        next.

        A frame none of whose rows can still be right may come back without rows.
        """
        flight = state.flight
        sent = flight.awaited if flight is not None else None
        if flight is None or sent is None or frame.seq != sent.seq:
            raise NotAllowed("return", f"seq {frame.seq} is not awaited")
        n = len(sent.nodes)
        if self.program.lends:
            x = frame_checks.token_ids(frame, self.program.config.vocab_size, n)
        else:
            x = frame_checks.hidden_states(frame, self._dtype, self.program.config.hidden_size, n, least=0)
        if x.shape[1] != n and (x.shape[1] or sent.awaited):
            raise BadFrame("shape", f"{x.shape[1]} positions, {n} were sent")
        pos = sent.pos if sent.seq else state.prompt - 1
        if frame_checks.count(frame, "pos") != pos:
            raise BadFrame("meta.pos", f"not {pos}")
        if state.scheduler is not None:
            state.scheduler.returned(sent)
        told = self._read(state, flight, sent, x)
        flight.returned()
        if state.ended is not None:
            flight.drop()
            return [*(self._hidden(state, last) for last in flight.last()), *told]
        # The ring first: the next token waits for it, the customer's copy does not.
        return [*self._onward(state, flight), *told]

    def _read(self, state: _Session, flight: Flight, sent: InFlightFrame, x: Tensor) -> list[Frame[Any]]:
        """The tokens that the rows of a return make known, as the customer gets them."""
        told = []
        for row, node in enumerate(sent.nodes):
            if node is not flight.head or state.ended is not None:
                continue
            pos, shown = node.position + 1, dict[str, str | bool]()
            if self.program.lends:
                token = int(x[0, row, 0])
            else:
                logits = self._vocabulary.logits(x[:, row : row + 1].to(self._device))
                frame_checks.check_finite(logits)
                token, shown = self._chosen(state, logits, pos)
                shown |= self._shown(state, logits, token, node.token)
            state.sampler.accept(token)
            if state.scheduler is not None:
                state.scheduler.accept(token, node.guesses)
            flight.accept(token)
            told.append(self._told(state, token, pos, shown))
        return told

    def _chosen(self, state: _Session, logits: Tensor, pos: int) -> tuple[int, dict[str, str | bool]]:
        """The token; of a session that judges another's that one's, where it is excused."""
        token, sampler, sampling = state.sampler.choose(logits, pos), state.sampler, state.sampling
        said, counter = (_at(listed, state.generated) for listed in (sampling.said or (), sampling.counter_tokens))
        if said is not None and said != token and sampler.excuses(logits, pos, said, self._dtype):
            token = said
        if counter is not None and counter != token and sampler.excuses(logits, pos, counter, self._dtype):
            return token, {EXCUSED: True}
        return token, {}

    def _shown(self, state: _Session, logits: Tensor, token: int, before: int) -> dict[str, str]:
        if state.sampling.logprobs is None:
            return {}
        return {"logprobs": state.sampler.format_logprobs(logits, token, before, self._tokenizer)}

    def _told(self, state: _Session, token: int, pos: int, shown: Mapping[str, str | bool]) -> Frame[Any]:
        seq = state.generated
        state.generated += 1
        state.ended = self._ended(state, token, pos)
        meta: dict[str, int | str | bytes | bool | None] = {
            "pos": pos,
            "chunk": chunk_of_turn(seq, self.program.chunk),
            "end": state.ended is not None,
            **shown,
        }
        if state.ended is not None:
            meta["reason"] = state.ended
        return Frame(self.program.edge_tokens, seq, (torch.tensor([token], dtype=torch.int64),), meta)

    def _onward(self, state: _Session, flight: Flight) -> list[Frame[Any]]:
        """The newest token's row, unless it is out already, and guesses."""
        scheduler, rows = state.scheduler, 1
        if scheduler is not None:
            # The last token's row is never needed, so neither is any after the one before it.
            last = min(state.sampling.positions, state.prompt + state.sampling.max_tokens) - 2
            flight.grow(scheduler.expand, scheduler.worth, last, scheduler.room(flight))
            rows = scheduler.width
        sent = flight.frames(rows)
        if scheduler is not None:
            scheduler.sent([one for one in sent if one.nodes])
        return [self._hidden(state, one) for one in sent]

    def _ended(self, state: _Session, token: int, pos: int) -> Reason | None:
        """Why the session ends with `token`, if it does."""
        if token in self.program.config.eos_token_id:
            return "eos"
        if state.text is not None:
            state.text.push(token)
        if state.sampler.ended or (state.text is not None and state.text.stopped):
            return "stop"
        if state.generated >= state.sampling.max_tokens or pos + 1 >= state.sampling.positions:
            return "length"
        return None

    def _hidden(self, state: _Session, sent: InFlightFrame) -> Frame[Any]:
        ids = torch.tensor([node.token for node in sent.nodes], dtype=torch.int64)
        first = sent.pos if ids.numel() else sent.pos - 1  # of no rows, of the last that it keeps
        chunk = chunk_of_turn(1 + first - state.prompt, self.program.chunk)
        meta: dict[str, int | str | bytes | bool | None] = {"pos": sent.pos, "chunk": chunk, "tokens": len(ids)}
        if sent.epoch:
            meta["epoch"] = sent.epoch
        if sent.parents is not None:
            meta["parents"] = packed(sent.parents)
        if sent.keep:
            meta["keep"] = packed(sent.keep)
        return Frame(self.program.edge_hidden, sent.seq, (self._rows(ids),), meta)

    def _rows(self, ids: Tensor) -> Tensor:
        """What goes around the ring for ids, int64 [n]: hidden states [1, n, width], or themselves, [1, n, 1]."""
        return ids[None, :, None] if self.program.lends else self._vocabulary.embed(ids).cpu()
