"""The driver of an embedding model: texts in, batches of token ids out to the graph tasks.

One frame on `texts` holds a JSON list of strings as UTF-8 bytes. It leaves as batches in the texts' own order, each
at most `rows` texts and `volume` ids, padding included, so that every task's memory holds. A batch is one chunk: it
has the same `seq` on every edge, and in its meta `chunk`, `rows`, `tokens` (ids without padding), and on the request's
last `end`.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer

from nodewire.errors import BadFrame, BadInput, BadTask, BadVersion, Busy, NotFound, TooLarge
from nodewire.graph.families.bert import IDS, MASK
from nodewire.graph.program.format import MAX_SLOTS
from nodewire.protocol.encoding import canonical
from nodewire.protocol.tensors.frame import Frame
from nodewire.text import growth
from nodewire.text.detokenizer import document_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TEXTS = "texts"
MAX_TEXTS = 1_024
MAX_TEXTS_BYTES = 2**20
MAX_TEXT_CHARS = 32_768
"""All of a text is tokenized before it is cut, at some 150 bytes a token."""
MAX_BYTES = 48 * 2**20
MAX_VALUES = 2**14
_VERSION = 1


@dataclass(frozen=True, slots=True)
class DriverProgram:
    """`edges` names the tensors (input_ids, attention_mask) that each edge carries, in order."""

    tokenizer: bytes
    pad_id: int
    positions: int
    rows: int
    volume: int
    edges: Mapping[str, tuple[str, ...]]
    slots: int

    def encode(self) -> bytes:
        return canonical.encode(
            {
                "v": _VERSION,
                "tokenizer": self.tokenizer,
                "pad_id": self.pad_id,
                "positions": self.positions,
                "rows": self.rows,
                "volume": self.volume,
                "edges": {name: list(tensors) for name, tensors in self.edges.items()},
                "slots": self.slots,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> DriverProgram:
        """Raises BadTask, BadVersion, TooLarge (over 48 MiB)."""
        try:
            raw = canonical.decode(data, max_bytes=MAX_BYTES, max_values=MAX_VALUES)
        except TooLarge as error:
            raise TooLarge("program", error.reason) from error
        except BadInput as error:
            raise BadTask("program", error.reason) from error
        if isinstance(raw, dict) and raw.get("v") != _VERSION:
            raise BadVersion("program", f"version {raw.get('v')!r}"[:80])
        match raw:
            case {
                "v": 1,
                "tokenizer": bytes(tokenizer),
                "pad_id": int(pad_id),
                "positions": int(positions),
                "rows": int(rows),
                "volume": int(volume),
                "edges": dict(edges),
                "slots": int(slots),
            } if len(raw) == 8:
                pass
            case _:
                raise BadTask("program", "not an encoder driver's")
        for name, value, most in (
            ("rows", rows, MAX_TEXTS),
            ("slots", slots, MAX_SLOTS),
            ("positions", positions, 2**20),
        ):
            if not 1 <= value <= most:
                raise BadTask(name, f"not from 1 to {most}")
        if not (positions <= volume <= rows * positions and 0 <= pad_id < 2**31):
            raise BadTask("volume", "does not hold one text, or more than `rows` of them")
        if len(edges) > 1_024 or any(
            not isinstance(names, list) or not names or any(n not in (IDS, MASK) for n in names)
            for names in edges.values()
        ):
            raise BadTask("edges", f"carry something else than {IDS} and {MASK}")
        return cls(tokenizer, pad_id, positions, rows, volume, {k: tuple(v) for k, v in edges.items()}, slots)


def tokenizer(data: bytes, positions: int) -> Tokenizer:
    """The tokenizer of a tokenizer.json, cutting at `positions` tokens and padding nothing.

    Raises:
        BadTask: the library does not read it, or it makes too much of a text.
        TooLarge: it has over 4,000,000 values.

    """
    growth.check(document_of(data))
    with _guarded():
        made = Tokenizer.from_str(data.decode())
    made.enable_truncation(max_length=positions)
    made.no_padding()
    return made


@contextmanager
def _guarded() -> Iterator[None]:
    """The library raises bare Exception for whatever it cannot read, and panics (a BaseException) on hostile files."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise BadTask("tokenizer", str(error)[:160]) from error


def batches(lengths: Sequence[int], rows: int, volume: int) -> list[tuple[int, int]]:
    """Ranges [first, last) over `lengths`, in order: at most `rows` long, and `volume` when padded to the longest."""
    found: list[tuple[int, int]] = []
    first = longest = 0
    for k, length in enumerate(lengths):
        longest = max(longest, length)
        if k - first == rows or (k - first + 1) * longest > volume:
            found.append((first, k))
            first, longest = k, length
    if lengths:
        found.append((first, len(lengths)))
    return found


def padded(ids: Sequence[Sequence[int]], pad_id: int) -> dict[str, torch.Tensor]:
    """input_ids and attention_mask, int64 [rows, longest], padded on the right."""
    longest = max(len(row) for row in ids)
    made = torch.full((len(ids), longest), pad_id, dtype=torch.int64)
    mask = torch.zeros_like(made)
    for k, row in enumerate(ids):
        made[k, : len(row)] = torch.tensor(row, dtype=torch.int64)
        mask[k, : len(row)] = 1
    return {IDS: made, MASK: mask}


def texts_of(tensor: torch.Tensor) -> list[str]:
    """The texts in a frame's uint8 tensor: a JSON list of strings.

    Raises:
        TooLarge: over 1 MiB, 1,024 texts, or 32,768 characters in one.
        BadInput: not such a list, or empty.

    """
    if tensor.numel() > MAX_TEXTS_BYTES:
        raise TooLarge(TEXTS, f"{tensor.numel()} bytes, at most {MAX_TEXTS_BYTES}")
    if tensor.dtype != torch.uint8 or tensor.dim() != 1:
        raise BadFrame(TEXTS, "not uint8 of rank 1")
    try:
        texts = json.loads(tensor.cpu().numpy().tobytes())
    except (ValueError, RecursionError) as error:
        raise BadInput(TEXTS, "not JSON") from error
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise BadInput(TEXTS, "not a list of one or more strings")
    if len(texts) > MAX_TEXTS:
        raise TooLarge(TEXTS, f"{len(texts)} texts, at most {MAX_TEXTS}")
    if max(map(len, texts)) > MAX_TEXT_CHARS:
        raise TooLarge(TEXTS, f"a text of over {MAX_TEXT_CHARS} characters")
    return texts


class EncoderDriver:
    """The actor of engine "encoder.driver"."""

    def __init__(self, program: DriverProgram) -> None:
        self._program = program
        self._tokenizer = tokenizer(program.tokenizer, program.positions)
        self._sessions: dict[str, int] = {}  # the next batch's number

    def open(self, session: str, params: Mapping[str, Any]) -> None:
        if session not in self._sessions and len(self._sessions) >= self._program.slots:
            raise Busy("slots", f"all {self._program.slots} are taken")
        self._sessions[session] = 0

    def receive(self, session: str, frame: Frame[torch.Tensor]) -> list[Frame[torch.Tensor]]:
        if session not in self._sessions:
            raise NotFound("session", "not open")
        if frame.edge != TEXTS or len(frame.tensors) != 1:
            raise BadFrame("edge", f"one tensor on {TEXTS} is expected")
        # One after the other: a batch would hold all their tokens before truncation at once.
        texts = texts_of(frame.tensors[0])
        with _guarded():
            ids = [self._tokenizer.encode(text).ids or [self._program.pad_id] for text in texts]
        ranges = batches([len(row) for row in ids], self._program.rows, self._program.volume)
        frames: list[Frame[torch.Tensor]] = []
        for k, (first, last) in enumerate(ranges):
            tensors = padded(ids[first:last], self._program.pad_id)
            seq = self._sessions[session] + k
            tokens = sum(map(len, ids[first:last]))
            meta: dict[str, int | str | bytes | bool | None] = {"chunk": seq, "rows": last - first, "tokens": tokens}
            if k == len(ranges) - 1:
                meta["end"] = True
            for edge, names in self._program.edges.items():
                frames.append(Frame(edge, seq, tuple(tensors[name] for name in names), meta))
        self._sessions[session] += len(ranges)
        return frames

    def close(self, session: str) -> None:
        self._sessions.pop(session, None)
