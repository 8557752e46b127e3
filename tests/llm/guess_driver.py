"""A driver that guesses by script: right or wrong as a test wants it, and none the wiser for what it sends."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch

from nodewire.errors import BadFrame, NotAllowed
from nodewire.protocol.tensors.frame import Frame, chunk_of_turn


@dataclass
class _Flight:
    lookahead: int
    max_tokens: int
    prompt: int = 0
    ended: bool = False
    epoch: int = 0
    seq: int = 1
    known: list = field(default_factory=list)
    """Tokens from the prompt's end on."""
    sent: deque = field(default_factory=deque)
    """Frames whose returns are awaited: seq, pos, ids, epoch."""
    chain: list = field(default_factory=list)
    """The ids that were sent from the prompt's end on, guesses among them."""


class GuessingDriver:
    """An Actor around a real driver, of which it uses tokenizer, embedding and head; it is greedy and ends by length.

    `guess(position)` is the id that it takes for the one at `position`, None for no idea; `depth`: how many positions
    it runs ahead; `width`: rows of a frame.
    """

    def __init__(self, driver, program, guess, depth, width):
        self._driver, self.program = driver, program
        self.guess, self.depth, self.width = guess, depth, width
        self.flights = {}

    def embed(self, ids):
        return self._driver._vocabulary.embed(torch.tensor(ids)).cpu()

    def open(self, session, params):
        params = dict(params)
        self.flights[session] = _Flight(params.pop("lookahead", 1), params["max_tokens"])
        self._driver.open(session, params)

    def close(self, session):
        self.flights.pop(session, None)
        self._driver.close(session)

    @torch.inference_mode()
    def receive(self, session, frame):
        flight = self.flights[session]
        if flight.ended:
            raise NotAllowed("session", "ended")
        if frame.edge == self.program.edge_prompt:
            (first,) = self._driver.receive(session, frame)
            flight.prompt = first.tensors[0].shape[1]
            flight.sent.append((0, 0, None, 0))
            return [first, *self._ahead(flight)]
        return self._took(flight, frame)

    def _took(self, flight, frame):
        seq, pos, ids, epoch = flight.sent.popleft()
        assert frame.seq == seq, (frame.seq, seq)
        rows, prompt = frame.tensors[0].shape[1], flight.prompt
        if rows == 0:
            if epoch == flight.epoch:
                raise BadFrame("return", "not void")
            return []
        told, known = [], flight.known
        first = prompt - 1 if ids is None else pos
        assert frame.meta["pos"] == first and rows == (1 if ids is None else len(ids))
        for i in range(rows):
            at = first + i
            if ids is not None and (at - prompt >= len(known) or known[at - prompt] != ids[i]):
                break
            if at + 1 - prompt < len(known):
                continue
            token = int(self._driver._vocabulary.logits(frame.tensors[0][:, i : i + 1]).argmax())
            number = at + 1 - prompt
            known.append(token)
            flight.ended = len(known) == flight.max_tokens
            meta = {"text": "", "pos": at + 1, "chunk": chunk_of_turn(number, self.program.chunk), "end": flight.ended}
            meta |= {"reason": "length"} if flight.ended else {}
            told.append(Frame(self.program.edge_tokens, number, (torch.tensor([token]),), meta))
            if flight.ended:
                return told
        out, newest = [], len(known) - 1
        if told and (len(flight.chain) <= newest or flight.chain[newest] != known[newest]):
            flight.epoch += len(flight.chain) > newest
            del flight.chain[newest:]
            out.append(self._send(flight, [known[newest]]))
        return [*out, *self._ahead(flight), *told]

    def _ahead(self, flight):
        """Guesses, as far as it goes."""
        out = []
        while flight.lookahead > 1 and len(flight.chain) < len(flight.known) + self.depth:
            ids = []
            while len(ids) < min(self.width, flight.lookahead):
                position = flight.prompt + len(flight.chain) + len(ids)
                guessed = self.guess(position) if position + 1 < self.program.positions else None
                if guessed is None:
                    break
                ids.append(guessed)
            if not ids:
                break
            out.append(self._send(flight, ids))
        return out

    def _send(self, flight, ids):
        pos, seq = flight.prompt + len(flight.chain), flight.seq
        flight.chain += ids
        flight.seq += 1
        flight.sent.append((seq, pos, ids, flight.epoch))
        chunk = 1 + (pos - flight.prompt) // self.program.chunk
        meta = {"pos": pos, "chunk": chunk, "tokens": len(ids), "epoch": flight.epoch}
        return Frame(self.program.edge_hidden, seq, (self.embed(ids),), meta)


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
    driver = actors[manifest.driver.name]
    program = driver.program.model_copy(update={"chunk": manifest.chunk})
    actors[manifest.driver.name] = GuessingDriver(driver, program, guess, depth, width)
    last = manifest.tasks[-1].name
    actors[last] = AllRows(actors[last])
