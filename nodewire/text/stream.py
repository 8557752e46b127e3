"""Tokens as text, piece by piece: nothing is printed that a later token could still change or a stop string cut.

A character may span several tokens, and decoders treat the first token of a text differently. So a window of ids is
decoded again with every token: the segment printed last, as context, and what came since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNFINISHED = "\ufffd"
_MAX_WINDOW = 64


class Decoder(Protocol):
    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; bytes that are no UTF-8 (yet) become U+FFFD."""


class TextStream:
    """The text of one session's generated tokens. With no stop string, the pieces joined are the decoded whole."""

    def __init__(self, tokenizer: Decoder, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids: list[int] = []  # the window
        self._settled = 0  # how many of them are printed context
        self._printed = 0  # how many characters of the window's text are out of it
        self._held = ""  # out of the window, not yet printed: a stop string may have begun
        self.stopped = False

    def push(self, token: int) -> str:
        """The newly printable text after `token`; once a stop string has come (it is not printed), `stopped` is set."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        finished = not text.endswith(_UNFINISHED) or len(self._ids) > _MAX_WINDOW
        stable = text if finished else text.rstrip(_UNFINISHED)
        piece = stable[self._printed :]
        self._printed = max(self._printed, len(stable))
        if finished and piece:
            del self._ids[: self._settled]
            self._settled = len(self._ids)
            self._printed = len(self._tokenizer.decode(self._ids))
        elif len(self._ids) > self._settled + _MAX_WINDOW and len(stable) <= self._printed:
            del self._ids[self._settled :]  # tokens that print nothing, however many come
        return self._through_stops(piece)

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        piece, self._held = self._held, ""
        if not self.stopped:
            text = self._tokenizer.decode(self._ids)
            piece += text[self._printed :]
            self._printed = max(self._printed, len(text))
        return piece

    def _through_stops(self, piece: str) -> str:
        text = self._held + piece
        found = [at for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        # Hold the longest ending that may yet become a stop string.
        keep = max((n for stop in self._stop for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def text_after(context: str, text: str) -> str:
    """What a text has that its context has not: the last bytes of a character change that, too."""
    return text[next((at for at, (a, b) in enumerate(zip(context, text, strict=False)) if a != b), len(context)) :]
