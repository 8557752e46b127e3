"""Random frames and closes of edges with guesses, and what nodewire makes of them, for other readers.

`python -m tests.interop.random_guesses FILE [NUMBER] [SEED]` writes one JSON document a line, in the layout of
tests/vectors/speculation1.json: the steps up to the first that is refused, the plain history, and whether one was.
"""

from __future__ import annotations

import json
import sys
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import Any

from nodewire.errors import BadFrame
from nodewire.protocol.speculation.frame_meta import packed
from nodewire.protocol.speculation.plain_history import History
from nodewire.protocol.tensors.frame import Array, Frame

NUMBER = 3_000
SEED = 2_026


def write(file: Path, number: int = NUMBER, seed: int = SEED) -> None:
    with file.open("w") as out:
        for case in range(number):
            out.write(json.dumps(_case(Random(seed * 1_000_000 + case))) + "\n")


def _case(random: Random) -> dict[str, Any]:
    case: dict[str, Any] = {
        "prompt": random.randrange(1, 4),
        "chunk": random.randrange(1, 6),
        "lookahead": random.randrange(1, 5),
    }
    history = History("hidden", chunk=case["chunk"], lookahead=case["lookahead"])
    meta = {"pos": 0, "chunk": 0, "tokens": case["prompt"]}
    history.append(Frame("hidden", 0, _tensor([0] * case["prompt"]), meta))
    case |= {"steps": [], "plain": [], "refused": False}
    guessed = _Guessed(random, case)
    for _ in range(random.randrange(1, 30)):
        step = guessed.step()
        case["steps"].append(step)
        try:
            if "close" in step:
                plain = [one for one in history.close(step["close"], step.get("positions")) if one.seq]
                case["plain"] += [{"seq": one.seq, **one.meta, "row": one.tensors[0].data[0]} for one in plain]
            else:
                history.append(_frame(step["frame"]))
        except BadFrame:
            case["refused"] = True
            return case
        if "positions" in step:
            return {**case, "claims": []}
    complete = takewhile(lambda chunk: not history.lacks(chunk) and history.is_past(chunk), range(guessed.closed, 99))
    case["claims"] = list(complete)
    return case


class _Guessed:
    """A driver that mostly keeps the rules: it knows the run's length, live cells' depths, and what is closed."""

    def __init__(self, random: Random, case: dict[str, Any]) -> None:
        self.random, self.case = random, case
        self.end, self.seq, self.epoch, self.closed = case["prompt"], 0, 0, 0
        self.parents: list[int] = []

    def step(self) -> dict[str, Any]:
        ready = self.case["prompt"] + self.closed * self.case["chunk"] if self.closed else 0
        if self.end >= ready and self.random.random() < 0.4:
            self.closed += 1
            positions = self.random.randrange(1, self.case["chunk"] + 1)
            last = {"positions": positions} if self.closed > 1 and self.random.random() < 0.05 else {}
            return {"close": self.closed - 1 + (self.random.random() < 0.02), **last}
        return {"frame": self._frame()}

    def _frame(self) -> dict[str, Any]:
        random, case = self.random, self.case
        self.seq += 1
        rows = [random.randrange(256) for _ in range(random.randrange(case["lookahead"] + (random.random() < 0.9)))]
        frame: dict[str, Any] = {"seq": self.seq, "rows": rows}
        if random.random() < 0.15:
            self.epoch += 1
            if random.random() < 0.7:
                self.end = max(case["prompt"], self.end - random.randrange(4))
        if self.parents and random.random() < 0.5:
            frame["keep"] = self._way()
            self.end += len(frame["keep"])
            self.parents = self._left(frame["keep"])
        elif random.random() < 0.1:
            self.end = max(case["prompt"], self.end - random.randrange(3))
        if rows and random.random() < 0.5:
            live = len(self.parents)
            frame["parents"] = [random.randrange(-1, live + n) for n in range(len(rows))]
            self.parents += frame["parents"]
        frame |= {"pos": self.end, "epoch": self.epoch}
        if rows and "parents" not in frame:
            self.end += len(rows)
            self.parents = []
        of = frame["pos"] - ("keep" in frame and not rows)
        frame["chunk"] = 1 + (of - case["prompt"]) // case["chunk"]
        if random.random() < 0.03:
            frame[random.choice(["pos", "epoch", "chunk", "seq"])] += random.choice([-1, 1])
        return frame

    def _way(self) -> list[int]:
        way = [self.random.randrange(len(self.parents))]
        while self.parents[way[0]] != -1:
            way.insert(0, self.parents[way[0]])
        return way

    def _left(self, way: list[int]) -> list[int]:
        numbers, left = {way[-1]: -1}, list[int]()
        for number, parent in enumerate(self.parents):
            if parent in numbers and parent != -1:
                numbers[number] = len(left)
                left.append(numbers[parent])
        return left


def _tensor(rows: list[int]) -> tuple[Array, ...]:
    return (Array("uint8", (1, len(rows), 1), bytes(rows)),)


def _frame(said: dict[str, Any]) -> Frame[Array]:
    meta = {"pos": said["pos"], "chunk": said["chunk"], "epoch": said["epoch"], "tokens": len(said["rows"])}
    meta |= {name: packed(tuple(said[name])) for name in ("parents", "keep") if name in said}
    return Frame("hidden", said["seq"], _tensor(said["rows"]), meta)


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
