"""One stage of a whole tiny model, and the plainest way to know what it must say: everything again, from the start."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

import torch

from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.entry import load
from nodewire.llm.stage import Stage
from nodewire.protocol.tensors.frame import Frame
from tests.llm.llm_models import ROOMY

WIDTH = 64
TOKENS = torch.randn(50, WIDTH, generator=torch.Generator().manual_seed(1))
"""The hidden state of each token."""


def whole_stage(directory: Path, out: Path, *, slots: int, context: int) -> Stage:
    """All layers of a model in one stage."""
    registration = split_decoder(directory, 2**30, out, slots=slots, options=DecoderOptions(context=context))
    _, task = registration.manifest.tasks
    program = registration.blobs[task.program.sha256].read_bytes()
    stage = load(task.engine, program, [registration.blobs[blob.sha256] for blob in task.weights], ROOMY)
    assert isinstance(stage, Stage)
    return stage


def cells(numbers) -> bytes:
    return struct.pack(f"<{len(numbers)}h", *numbers)


def frame(tokens, pos, seq=1, **meta) -> Frame:
    """Tokens as hidden states; lists in `meta` are cells."""
    said = {name: cells(value) if isinstance(value, list) else value for name, value in meta.items()}
    return Frame(
        "hidden.0", seq, (TOKENS[tokens][None].clone(),), {"pos": pos, "chunk": 0, "tokens": len(tokens)} | said
    )


class Plain:
    """A session as a list of tokens, and a tree of further ones; `again` is another stage, which forgets everything."""

    def __init__(self, again: Stage, positions: int) -> None:
        self.again, self.positions = again, positions
        self.run: list[int] = []
        self.live: list[tuple[int, int]] = []
        """Of each live cell: the one it follows, and its token."""
        self.epoch = 0

    def path(self, cell: int) -> list[int]:
        """The cells that lead to one, itself included."""
        return [] if cell < 0 else [*self.path(self.live[cell][0]), cell]

    def history(self, cell: int) -> list[int]:
        return self.run + [self.live[one][1] for one in self.path(cell)]

    def chain(self, tokens: list[int], pos: int | None = None) -> tuple[Frame, list[list[int]]]:
        """A frame, and the history of each of its rows."""
        pos = len(self.run) if pos is None else pos
        self.run, self.live = self.run[:pos] + tokens, []
        histories = [self.run[: pos + i + 1] for i in range(len(tokens))]
        return frame(tokens, pos, epoch=self.epoch), histories

    def keep(self, cell: int) -> list[int]:
        """The path to a cell, which joins the run."""
        path = self.path(cell)
        self.run = self.history(cell)
        left = [one for one in range(len(self.live)) if one != cell and cell in self.path(one)]
        number = {cell: -1} | {one: i for i, one in enumerate(left)}
        self.live = [(number[self.live[one][0]], self.live[one][1]) for one in left]
        return path

    def branches(self, tokens: list[int], parents: list[int], **meta) -> tuple[Frame, list[list[int]]]:
        first = len(self.live)
        self.live += zip(parents, tokens, strict=True)
        histories = [self.history(first + i) for i in range(len(tokens))]
        return frame(tokens, len(self.run), epoch=self.epoch, parents=parents, **meta), histories

    def at_random(self, chance: Random) -> tuple[Frame, list[list[int]]]:
        """A frame that may come now, of at most a few rows."""
        does = chance.choice(("chain", "chain", "rewind", "new epoch", "tree", "tree", "keep", "keep chain"))
        tokens = [chance.randrange(50) for _ in range(chance.randint(1, 5))]
        if does == "rewind":
            return self.chain(tokens, chance.randint(0, min(len(self.run), self.positions - len(tokens))))
        if does == "new epoch":
            self.epoch += 1
            self.live = []
        kept = []
        if does in ("keep", "keep chain") and self.live:
            kept = self.keep(chance.randrange(len(self.live)))
        room = self.positions - len(self.run) - (0 if does in ("chain", "keep chain") else len(self.live))
        tokens = tokens[: max(0, room)]
        if does in ("chain", "keep chain") or not tokens:
            if not tokens and not kept:
                return self.chain([0], 0)
            if not tokens:
                return frame([], len(self.run), epoch=self.epoch, keep=kept), []
            of, histories = self.chain(tokens)
            return (Frame(of.edge, of.seq, of.tensors, {**of.meta, "keep": cells(kept)}) if kept else of), histories
        parents = [chance.randint(-1, len(self.live) + i - 1) for i in range(len(tokens))]
        return self.branches(tokens, parents, **({"keep": kept} if kept else {}))

    def expected(self, histories: list[list[int]]) -> torch.Tensor:
        """What each row must be: its whole history computed anew."""
        known: dict[tuple[int, ...], torch.Tensor] = {}
        for history in sorted(map(tuple, histories), key=len, reverse=True):
            if history not in known:
                self.again.open("again", {})
                (answer,) = self.again.receive("again", frame(list(history), 0))
                self.again.close("again")
                known |= {history[: n + 1]: row for n, row in enumerate(answer.tensors[0][0])}
        return torch.stack([known[tuple(history)] for history in histories]) if histories else torch.empty(0, WIDTH)


def assert_close(made: torch.Tensor, expected: torch.Tensor) -> None:
    assert made.shape == expected.shape
    # Rows of another session would be off by all of it; experts weigh rounding differences by their own weights.
    assert not len(expected) or (made - expected).abs().max() <= 1e-4 * expected.abs().max()
