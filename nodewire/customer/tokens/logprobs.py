"""What a driver says of a token's log-probability and of its likeliest rivals'. nips/28-generation.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from nodewire.errors import BadFrame

MAX_BYTES = 4_096
MAX_ROWS = 21
_LEAST = -9999.0


@dataclass(frozen=True, slots=True)
class Likely:
    """A token, its natural log-probability by the model's own logits, and its text, which is cut where it is long."""

    id: int
    logprob: float
    text: str


def likely_of(said: object, token: int) -> tuple[Likely, ...]:
    """The rows of JSON [[id, log-probability, text] ...], of which the first is `token`'s. Raises BadFrame."""
    if not isinstance(said, str) or len(said) > MAX_BYTES:
        raise BadFrame("logprobs", f"not a text of at most {MAX_BYTES} characters")
    try:
        rows = orjson.loads(said)
    except orjson.JSONDecodeError as error:
        raise BadFrame("logprobs", "not JSON") from error
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_ROWS:
        raise BadFrame("logprobs", f"not 1 to {MAX_ROWS} rows")
    found = tuple(_row(row) for row in rows)
    if found[0].id != token:
        raise BadFrame("logprobs", "of another token than came")
    return found


def _row(row: Any) -> Likely:
    match row:
        case [int(id_), float() | int() as logprob, str(text)] if (
            type(id_) is int and 0 <= id_ < 2**31 and type(logprob) is not bool and _LEAST <= logprob <= 0
        ):
            return Likely(id_, float(logprob), text)
    raise BadFrame("logprobs", "a row is not a token's id, a log-probability and a text")
