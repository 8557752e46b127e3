"""A driver that lies by the book: every frame of it can follow those before it, and none means what it says.

It rewinds within an epoch, keeps cells that it makes void, sends frames without rows and trees that stand on void ones,
jumps in epochs, and tells tokens that nothing stands for. What no edge takes is left out: that is refused at once.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from random import Random

import torch

from nodewire.errors import BadFrame
from nodewire.protocol.speculation.frame_meta import packed
from nodewire.protocol.speculation.plain_history import History
from nodewire.protocol.tensors.frame import Frame
from tests.kinds.inprocess import to_arrays

KINDS = ("on", "on", "on", "back", "epoch", "tree", "tree", "back tree", "keep", "keep", "keep tree", "empty")


@dataclass
class _Lies:
    history: History
    prompt: int = 0
    seq: int = 0
    epoch: int = 0
    told: int = 0
    back: int = -1
    """The number of the last that has come back."""
    waits: bool = False
    """It sends nothing until all has come back."""
    ended: bool = False


class LyingDriver:
    """An Actor around a real driver, whose tokenizer and embedding it uses. `frames` lies, then the last token."""

    def __init__(self, driver, program, seed, frames, *, trees=True, takes_back=False):
        """`takes_back`: it makes void what it has just closed; else it has all returns before it closes a chunk."""
        self._driver, self.program, self.random, self.frames = driver, program, Random(seed), frames
        self.takes_back = takes_back
        self.kinds = KINDS if trees else tuple(kind for kind in KINDS if "tree" not in kind and "keep" not in kind)
        self.sessions = {}

    def open(self, session, params):
        params = dict(params)
        lookahead = params.pop("lookahead", 1)
        self.sessions[session] = _Lies(History("hidden", chunk=self.program.chunk, lookahead=lookahead))
        self._driver.open(session, params)

    def close(self, session):
        self.sessions.pop(session, None)
        self._driver.close(session)

    @torch.inference_mode()
    def receive(self, session, frame):
        lies = self.sessions[session]
        if frame.edge == self.program.edge_prompt:
            (first,) = self._driver.receive(session, frame)
            lies.prompt = first.tensors[0].shape[1]
            lies.history.append(to_arrays(first))
            return [first, *self._lie(lies, 4)]
        lies.back += 1
        if lies.ended:
            return []
        flying = lies.seq - lies.back
        if self.takes_back:
            return [*self._lie(lies, 1 if flying > 8 else 2), *self._told(lies)]
        far = _rows(lies) > lies.told + 12
        lies.waits = flying > 0 and (lies.waits or far or not self.random.randrange(12))
        told = self._told(lies) if flying == 0 else []
        if lies.ended:
            return told
        return [*self._lie(lies, 0 if lies.waits else 1 if flying > 8 else 2 + 2 * (flying == 0)), *told]

    def _told(self, lies):
        """Tokens, as far as chunks may be closed: rows of them are there now, and may be void the next moment."""
        history, chunk = lies.history, self.program.chunk
        made = _rows(lies)
        out = []
        while not lies.ended and lies.told <= made and (not self.takes_back or not out or self.random.randrange(4)):
            number = lies.told
            lies.ended = lies.seq >= self.frames
            meta = {"text": "", "pos": lies.prompt + number, "chunk": self._chunk(number), "end": lies.ended}
            meta |= {"reason": "length"} if lies.ended else {}
            out.append(Frame(self.program.edge_tokens, number, (torch.tensor([7]),), meta))
            lies.told += 1
            if number % chunk == 0:  # the token behind a chunk's last position: it is closed
                history.close(number // chunk)
        return out

    def _chunk(self, number):
        return 0 if number == 0 else 1 + (number - 1) // self.program.chunk

    def _lie(self, lies, most):
        """So many frames that may be sent, or fewer if none is found."""
        outs = []
        for _ in range(100 * bool(most)):
            out = self._drawn(lies, self.random.choice(self.kinds))
            if not self.takes_back and out.meta["pos"] + out.meta["tokens"] > lies.prompt + lies.told + 14:
                continue
            with suppress(BadFrame):
                lies.history.append(to_arrays(out))
                lies.seq, lies.epoch = out.seq, out.meta["epoch"]
                outs.append(out)
                if len(outs) == most:
                    break
        return outs

    def _drawn(self, lies, kind):
        draw, history = self.random, lies.history
        floor, length = history._first, history._length
        rows, pos, keep, parents, epoch = 1 + draw.randrange(6), length, None, None, lies.epoch
        if kind in ("back", "back tree", "empty"):
            pos = draw.randrange(max(floor, length - 6), length + 1)
        if kind == "epoch" or (kind == "back tree" and draw.randrange(2)):
            pos = draw.randrange(max(floor, length - 6), length + 1)
            epoch += draw.choice((1, 1, 2, 1000))
        live = len(history._live)
        if kind.startswith("keep"):
            keep = self._way(history._live)
            pos = length + len(keep)
            rows = draw.choice((0, rows))
        if "tree" in kind:
            parents = [draw.randrange(-1, live + i) for i in range(rows)]
        rows = 0 if kind == "empty" else rows
        meta = {"pos": pos, "epoch": epoch, "tokens": rows}
        meta["chunk"] = 1 + ((pos if rows or not keep else pos - 1) - lies.prompt) // self.program.chunk
        meta |= {"keep": packed(tuple(keep))} if keep is not None else {}
        meta |= {"parents": packed(tuple(parents))} if parents and rows else {}
        return Frame(self.program.edge_hidden, lies.seq + 1, (self._embed(rows).contiguous(),), meta)

    def _way(self, live):
        """Cells from the root on, each the parent of the next."""
        way, last = [], None
        while choices := [n for n, cell in enumerate(live) if cell.follows(last)]:
            way.append(self.random.choice(choices))
            last = live[way[-1]]
            if not self.random.randrange(3):
                break
        return way or [0]

    def _embed(self, rows):
        ids = [self.random.randrange(290) for _ in range(max(rows, 1))]
        return self._driver._vocabulary.embed(torch.tensor(ids)).cpu()[:, :rows]


def _rows(lies):
    """How many rows behind the prompt the run has."""
    return lies.history._first + len(lies.history._run) - lies.prompt
