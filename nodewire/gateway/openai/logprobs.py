"""Log-probabilities as OpenAI's clients know them: of a chat's tokens, and of a completion's.

An end token has none: it is no text. Of a stop string, which is no text either, the tokens stand all the same, since
they were made. `bytes` is null where a token is not whole characters: its own bytes are known to the driver alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nodewire.customer.tokens.logprobs import Likely
    from nodewire.customer.tokens.token_chunk import Piece

Logprobs = dict[str, Any] | None
_UNFINISHED = "\ufffd"


def of_chat(pieces: Iterable[Piece]) -> Logprobs:
    """https://platform.openai.com/docs/api-reference/chat/object: `choices[].logprobs`; None of no tokens."""
    content = [{**_token(rows[0]), "top_logprobs": [_token(row) for row in rows[1:]]} for rows in _told(pieces)]
    return {"content": content, "refusal": None} if content else None


def of_completion(pieces: Iterable[Piece], at: int) -> Logprobs:
    """The same of a completion; `at` is where in the answer the first token's text begins (characters)."""
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for rows in _told(pieces):
        found["tokens"].append(rows[0].text)
        found["token_logprobs"].append(rows[0].logprob)
        top: dict[str, float] = {}
        for row in (*rows[1:], rows[0]):  # of tokens with one text the likeliest is told
            top.setdefault(row.text, row.logprob)
        found["top_logprobs"].append(top if len(rows) > 1 else None)
        found["text_offset"].append(at)
        at += len(rows[0].text)
    return found if found["tokens"] else None


def length(pieces: Iterable[Piece]) -> int:
    """Characters of the tokens' texts."""
    return sum(len(rows[0].text) for rows in _told(pieces))


def _told(pieces: Iterable[Piece]) -> list[Sequence[Likely]]:
    return [piece.likely for piece in pieces if piece.likely and piece.reason != "eos"]


def _token(row: Likely) -> dict[str, Any]:
    whole = _UNFINISHED not in row.text
    return {"token": row.text, "logprob": row.logprob, "bytes": list(row.text.encode()) if whole else None}
