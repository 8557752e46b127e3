"""A driver that guesses by script: right or wrong as a test wants it, and none the wiser for what it sends."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch

from nodewire.errors import BadFrame, NotAllowed
from nodewire.llm import frames
from nodewire.llm.driver import Driver, chunk_of
from nodewire.llm.sampling import choose
from nodewire.protocol.frame import Frame


@dataclass
class _Flight:
    lookahead: int
    epoch: int = 0
    seq: int = 1
    known: list = field(default_factory=list)
    """Tokens from the prompt's end on."""
    sent: deque = field(default_factory=deque)
    """Frames whose returns are awaited: seq, pos, ids, epoch."""
    chain: list = field(default_factory=list)
    """The ids that were sent from the prompt's end on, guesses among them."""


class GuessingDriver(Driver):
    """`guess(position)` is the id that it takes for the one at `position`, None for no idea; `depth`: how many
    positions it runs ahead; `width`: rows of a frame."""

    guess = staticmethod(lambda position: None)
    depth, width = 4, 1

    def open(self, session, params):
        params = dict(params)
        self.flights = getattr(self, "flights", {})
        self.flights[session] = _Flight(params.pop("lookahead", 1))
        super().open(session, params)

    @torch.inference_mode()
    def receive(self, session, frame):
        state, flight = self._sessions[session], self.flights[session]
        if state.ended is not None:
            raise NotAllowed("session", "ended")
        replayed = frame.meta.get("replay") is True
        if frame.edge == self.program.edge_prompt:
            (first,) = self._prompt(state, frame)
            flight.sent.append((0, 0, None, 0))
            return [first, *([] if replayed else self._ahead(state, flight))]
        return self._took(state, flight, frame, replayed)

    def _took(self, state, flight, frame, replayed):
        seq, pos, ids, epoch = flight.sent.popleft()
        assert frame.seq == seq, (frame.seq, seq)
        rows, prompt = frame.tensors[0].shape[1], state.prompt
        if rows == 0:
            if epoch == flight.epoch:
                raise BadFrame("return", "not void")
            return []
        told = []
        first = prompt - 1 if ids is None else pos
        assert frame.meta["pos"] == first and rows == (1 if ids is None else len(ids))
        for i in range(rows):
            at = first + i
            if ids is not None and (at - prompt >= len(flight.known) or flight.known[at - prompt] != ids[i]):
                break
            if at + 1 - prompt < len(flight.known):
                continue
            logits = self._vocabulary.logits(frame.tensors[0][:, i : i + 1])
            frames.check_finite(logits)
            token = choose(logits, state.sampling, at + 1)
            flight.known.append(token)
            state.generated += 1
            text, state.ended = self._speak(state, token, at + 1)
            number = at + 1 - prompt
            meta = {"text": text, "pos": at + 1, "chunk": chunk_of(number, self.program.chunk)}
            meta["end"] = state.ended is not None
            meta |= {"reason": state.ended} if state.ended else {}
            told.append(Frame(self.program.edge_tokens, number, (torch.tensor([token]),), meta))
            if state.ended is not None:
                return told
        out = []
        newest = len(flight.known) - 1
        if told and (len(flight.chain) <= newest or flight.chain[newest] != flight.known[newest]):
            flight.epoch += len(flight.chain) > newest
            del flight.chain[newest:]
            out.append(self._send(state, flight, [flight.known[newest]]))
        return [*out, *([] if replayed else self._ahead(state, flight)), *told]

    def _ahead(self, state, flight):
        """Guesses, as far as it goes."""
        out = []
        while flight.lookahead > 1 and len(flight.chain) < len(flight.known) + self.depth:
            ids = []
            while len(ids) < min(self.width, flight.lookahead):
                position = state.prompt + len(flight.chain) + len(ids)
                guessed = self.guess(position) if position + 1 < self.program.positions else None
                if guessed is None:
                    break
                ids.append(guessed)
            if not ids:
                break
            out.append(self._send(state, flight, ids))
        return out

    def _send(self, state, flight, ids):
        pos, seq = state.prompt + len(flight.chain), flight.seq
        flight.chain += ids
        flight.seq += 1
        flight.sent.append((seq, pos, ids, flight.epoch))
        chunk = 1 + (pos - state.prompt) // self.program.chunk
        meta = {"pos": pos, "chunk": chunk, "tokens": len(ids), "epoch": flight.epoch}
        return Frame(self.program.edge_hidden, seq, (self._vocabulary.embed(torch.tensor(ids)).cpu(),), meta)


class AllRows:
    """The stage that closes, as it answers a driver that guesses: every row of a frame but the prompt's."""

    def __init__(self, stage):
        self._stage = stage
        stage.program = stage.program.model_copy(update={"closes": False})

    def __getattr__(self, name):
        return getattr(self._stage, name)

    def receive(self, session, frame):
        (out,) = self._stage.receive(session, frame)
        if frame.seq:
            return [out]
        pos = out.meta["pos"] + out.tensors[0].shape[1] - 1
        return [Frame(out.edge, out.seq, (out.tensors[0][:, -1:],), {**out.meta, "pos": pos, "tokens": 1})]


def make_guessing(manifest, actors, guess, *, depth=4, width=1):
    """Have a ring's driver guess; its other actors are the real ones."""
    for name, actor in actors.items():
        if name == manifest.driver.name:
            actor.__class__ = GuessingDriver
            actor.guess, actor.depth, actor.width = guess, depth, width
            actor.program = actor.program.model_copy(update={"chunk": manifest.chunk})
    last = manifest.tasks[-1].name
    actors[last] = AllRows(actors[last])
