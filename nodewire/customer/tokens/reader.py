"""Reads a job's tokens. What the driver says beside an id decides nothing that does not follow from the ids.

Text, end and its reason are derived here: from the model's tokenizer and its end tokens, and from the job's stop
strings, `max_tokens` and `positions`. The driver's word is taken for two things. One is the prompt's length in tokens,
within its bytes. The other is that a text under a JSON schema is whole: it is JSON then, but may be so early.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nodewire.customer.tokens.logprobs import Likely, likely_of
from nodewire.customer.tokens.token_chunk import Piece, only
from nodewire.errors import BadFrame
from nodewire.text.stream import TextStream, text_after

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodewire.customer.models.text import ModelText
    from nodewire.protocol.tensors.frame import Array, Frame

Reason = Literal["", "eos", "stop", "length"]


class TokenReader:
    """The pieces of one job. `params` are the job's as they are sealed; `history` are ids that earlier jobs made."""

    def __init__(self, text: ModelText, params: Mapping[str, Any], history: Sequence[int], most_prompt: int) -> None:
        """`most_prompt`: positions that the prompt takes at most, the history among them."""
        self._rules, self._detokenizer = text.rules, text.detokenizer
        self._stream = TextStream(text.detokenizer, params["stop"])
        self._left, self._positions = params["max_tokens"], params["positions"]
        self._alternatives: int | None = params.get("logprobs")
        self._least_prompt, self._most_prompt = 1 + len(history), most_prompt
        self._is_shaped = "json_schema" in params or "json_object" in params
        self._texts: list[str] = []
        """All of the text so far, if it is to be JSON."""
        self._position: int | None = None
        """Of the next id, once the first has come."""
        self._before = history[-1:]
        self._reason: Reason = ""
        for token in history:
            self._spoken(token)

    def piece(self, frame: Frame[Array]) -> Piece:
        """What a frame on the edge `tokens` makes known.

        Raises:
            BadFrame: no token that may come here, or the driver says something else beside it than follows.

        """
        meta, (token,) = frame.meta, self._ids(frame)
        if self._reason:
            raise BadFrame("tokens", f"one more, after the text ended ({self._reason})")
        position = self._placed(meta.get("pos"))
        self._left -= 1
        text, self._reason = self._read(token, position, is_last=meta.get("end") is True)
        if (meta.get("end") is True) != bool(self._reason):
            raise BadFrame("end", f"{meta.get('end')!r}, but {_followed(self._reason)}")
        if (said := meta.get("text", text)) != text:
            raise BadFrame("text", f"{str(said)[:40]!r} is said, token {token} makes {text[:40]!r} known")
        likely = self._likely(meta.get("logprobs"), token)
        self._before = (token,)
        return Piece(text, (token,), bool(self._reason), self._reason, position, likely)

    def _ids(self, frame: Frame[Array]) -> tuple[int, ...]:
        array = only(frame, "tokens")
        if array.dtype != "int64" or array.shape != (1,):
            raise BadFrame("tokens", f"{array.dtype} {list(array.shape)}, not one int64")
        ids = tuple(int(i) for i in np.frombuffer(array.data, np.int64))
        if not 0 <= ids[0] < self._rules.vocabulary:
            raise BadFrame("tokens", f"{ids[0]} is not in the vocabulary of {self._rules.vocabulary}")
        return ids

    def _placed(self, said: object) -> int:
        """The id's position: the driver counts the prompt's tokens, and from there on all is known."""
        if self._position is None:
            if type(said) is not int or not self._least_prompt <= said <= self._most_prompt:
                raise BadFrame("pos", f"{said!r}, not from {self._least_prompt} to {self._most_prompt}"[:200])
        elif said != self._position:
            raise BadFrame("pos", f"{str(said)[:20]}, {self._position} was next")
        assert type(said) is int
        self._position = said + 1
        return said

    def _read(self, token: int, position: int, *, is_last: bool) -> tuple[str, Reason]:
        """The text that becomes known with `token`, and why it is the last, if it is."""
        if token in self._rules.ends:
            return self._stream.flush(), "eos"
        text = self._spoken(token)
        if self._stream.stopped:
            return text, "stop"
        if self._left <= 0 or position + 1 >= self._positions:
            return text + self._stream.flush(), "length"
        if is_last and self._is_shaped and _is_json("".join(self._texts) + (rest := self._stream.flush())):
            return text + rest, "stop"
        return text, ""

    def _spoken(self, token: int) -> str:
        text = self._stream.push(token)
        if self._is_shaped:
            self._texts.append(text)
        return text

    def _likely(self, said: object, token: int) -> tuple[Likely, ...]:
        """The driver's log-probabilities, with the texts that their ids have here."""
        if self._alternatives is None:
            return ()
        found = likely_of(said, token)
        if not 1 <= len(found) <= 1 + self._alternatives:
            raise BadFrame("logprobs", f"{len(found)} came, {1 + self._alternatives} were asked for")
        context = self._detokenizer.decode(self._before)
        return tuple(
            Likely(one.id, one.logprob, text_after(context, self._detokenizer.decode((*self._before, one.id))))
            for one in found
        )


def _followed(reason: Reason) -> str:
    return f"the text ends here ({reason})" if reason else "the text does not end here"


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except RecursionError:
        return True  # nested more deeply than is read here
    except ValueError:
        return False
    return True
