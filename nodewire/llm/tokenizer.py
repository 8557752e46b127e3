"""A model's tokenizer from its tokenizer.json, and text that becomes printable token by token."""

from __future__ import annotations

import tokenizers

from nodewire.errors import BadInput, BadTask

_REPLACEMENT = "\ufffd"


class Tokenizer:
    """Wraps the `tokenizers` library. Raises BadTask if the text is no tokenizer.json."""

    def __init__(self, text: str) -> None:
        try:
            self._inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exceptions for whatever it cannot parse
            raise BadTask("tokenizer", f"not a tokenizer.json: {error}"[:200]) from error
        # A file may carry its own truncation and padding; a prompt is neither cut nor filled up.
        self._inner.no_truncation()
        self._inner.no_padding()

    def encode(self, text: str) -> list[int]:
        """Raises BadInput if the text gives no tokens."""
        ids = list(self._inner.encode(text).ids)
        if not ids:
            raise BadInput("prompt", "gives no tokens")
        return ids

    def decode(self, ids: list[int]) -> str:
        return str(self._inner.decode(ids, skip_special_tokens=True))


class Detokenizer:
    """Incremental decoding: the pieces together are the decoding of all ids, and no piece ends inside a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._from = 0
        """Ids before this one are printed and no longer needed as context."""
        self._printed = ""

    def add(self, token: int) -> str:
        """The text that became printable with `token`."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids[self._from :])
        if text.endswith(_REPLACEMENT):
            return ""  # an unfinished UTF-8 sequence: the next token may complete it
        piece = text[len(self._printed) :]
        self._printed = text
        if len(self._ids) - self._from > 32:
            # Keep a few ids as context: decoders look at neighbours (leading spaces, byte runs).
            self._from = len(self._ids) - 8
            self._printed = self._tokenizer.decode(self._ids[self._from :])
        return piece

    def rest(self) -> str:
        """What is left when no token follows."""
        text = self._tokenizer.decode(self._ids[self._from :])
        piece, self._printed = text[len(self._printed) :], text
        return piece
