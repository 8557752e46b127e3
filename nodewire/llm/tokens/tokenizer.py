"""Text to token ids and back, by a model's own tokenizer.json (the `tokenizers` library: data, no code)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import AddedToken
from tokenizers import Tokenizer as _Tokenizer

from nodewire.errors import BadInput, TooLarge
from nodewire.text import growth
from nodewire.text.detokenizer import Detokenizer, guarded

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_PROMPT_BYTES = 4 * 1_048_576
_LEAST = 16
"""Characters to a token, at least: some tokenizers leave out blanks, or join what they do not know."""


class Tokenizer:
    """A loaded tokenizer.json. Its customers decode with the same `Detokenizer`.

    Raises as that, and BadTask: it makes too much of a text (`nodewire.text.growth`).
    """

    def __init__(self, data: bytes) -> None:
        self._detokenizer = Detokenizer(data)
        growth.check(self._detokenizer.around)
        with guarded("not a tokenizer.json"):
            self._tokenizer = _Tokenizer.from_str(data.decode())
        # Truncation and padding are the caller's business: a prompt that is too long is refused, not cut.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.longest = max(_LEAST, max(map(len, self.vocabulary()), default=0))
        """Characters that one token may stand for."""

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """The ids of `text`, with the special tokens that the tokenizer itself adds if `special_tokens`.

        Raises:
            TooLarge: over 4 MiB of UTF-8.
            BadInput: not text that UTF-8 can hold (a lone surrogate).

        """
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise BadInput("text", "not UTF-8") from error
        if size > MAX_PROMPT_BYTES:
            raise TooLarge("text", f"{size} bytes, at most {MAX_PROMPT_BYTES}")
        with guarded("cannot encode"):
            return list(self._tokenizer.encode(text, add_special_tokens=special_tokens).ids)

    def document(self) -> str:
        """The tokenizer.json that it would be loaded from."""
        with guarded("cannot be written"):
            return str(self._tokenizer.to_str())

    def vocabulary(self) -> dict[str, int]:
        """Every token's id, added ones included."""
        with guarded("has no vocabulary"):
            return dict(self._tokenizer.get_vocab(with_added_tokens=True))

    def with_token(self, text: str) -> tuple[str, int]:
        """The tokenizer.json of a copy that has one more special token, and that one's id."""
        with guarded("takes no further token"):
            copy = _Tokenizer.from_str(self._tokenizer.to_str())
            copy.add_special_tokens([AddedToken(text, special=True)])
            return str(copy.to_str()), int(copy.get_vocab(with_added_tokens=True)[text])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out; bytes that are no UTF-8 (yet) become U+FFFD."""
        return self._detokenizer.decode(ids)
