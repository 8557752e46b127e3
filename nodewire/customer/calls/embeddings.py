"""The vectors of texts: one call of an encoder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import orjson

from nodewire.customer.calls.stateless_call import StatelessCall
from nodewire.customer.tokens.token_chunk import only
from nodewire.errors import BadFrame, BadInput
from nodewire.plan.codec import CHARS_PER_TOKEN
from nodewire.protocol.tensors.frame import Array, Frame

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_TEXTS_BYTES = 16_000_000


@dataclass(slots=True)
class Embedding(StatelessCall):
    """`rows` are the vectors so far, float32 [n, width]."""

    texts: Sequence[str]
    """One for each vector."""
    rows: list[np.ndarray] = field(default_factory=list, init=False)
    tokens: int = field(default=0, init=False)
    """Of all texts, by the driver's word; 0 if it does not say."""

    def frames(self) -> list[Frame[Array]]:
        try:
            body = orjson.dumps(list(self.texts))
        except TypeError as error:
            raise BadInput("texts", f"not text: {error}") from error
        if not self.texts or len(body) > MAX_TEXTS_BYTES:
            raise BadInput("texts", f"none, or more than {MAX_TEXTS_BYTES} bytes")
        for n, text in enumerate(self.texts, start=1):
            if not text.strip():
                raise BadInput("texts", f"number {n} is empty")
        edge = next(e for e in self.manifest.edges if e.source == "customer")
        return [Frame(edge.name, 0, (Array("uint8", (len(body),), body),), {"chunk": 0})]

    def positions(self) -> int:
        """A token has some four characters."""
        return sum(-(-len(text) // CHARS_PER_TOKEN) for text in self.texts)

    def add_output(self, out: Frame[Array]) -> None:
        matrix = _matrix(out)
        many = sum(map(len, self.rows)) + len(matrix) > len(self.texts)
        if many or (self.rows and matrix.shape[1:] != self.rows[0].shape[1:]):
            raise BadFrame("vectors", "more than one for a text, or of another width than those before")
        self.rows.append(matrix)
        said = out.meta.get("tokens", 0)
        self.tokens += said if type(said) is int and 0 <= said < 2**31 else 0

    def forget(self) -> None:
        self.rows.clear()
        self.tokens = 0

    def has_output(self) -> bool:
        return bool(self.rows)

    def finish(self) -> None:
        if (came := sum(map(len, self.rows))) != len(self.texts):
            raise BadFrame("vectors", f"{came} came for {len(self.texts)} texts")

    def vectors(self) -> np.ndarray:
        """Float32 [len(texts), width]."""
        return np.concatenate(self.rows)


def _matrix(frame: Frame[Array]) -> np.ndarray:
    array = only(frame, frame.edge)
    if array.dtype != "float32" or len(array.shape) != 2 or not all(array.shape):
        raise BadFrame("vectors", f"{array.dtype} {list(array.shape)}, not a float32 matrix")
    matrix = np.frombuffer(array.data, np.float32).reshape(array.shape)
    if not np.isfinite(matrix).all():
        raise BadFrame("vectors", "numbers that are not finite")
    return matrix
