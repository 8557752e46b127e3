"""One generation's text as it grows: pieces, stop strings, the end and its reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from nodewire.llm.tokenizer import Detokenizer, Tokenizer


class Growing:
    """Feed it tokens; it says what to print and whether the generation has ended ("length", "stop" or "eos")."""

    def __init__(self, tokenizer: Tokenizer, eos: Collection[int], params: Mapping[str, Any], room: int) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._eos = frozenset(eos)
        self._most = min(int(params["max_tokens"]), room)
        self._stops = tuple(params.get("stop") or ())
        self._held = ""
        """Text that may be the beginning of a stop string."""
        self.count = 0

    def add(self, token: int) -> tuple[str, str]:
        """The piece to print, and the reason if this was the last token (else "")."""
        self.count += 1
        if token in self._eos:
            return self._held + self._detokenizer.rest(), "eos"
        text = self._held + self._detokenizer.add(token)
        for stop in self._stops:
            if (at := text.find(stop)) >= 0:
                return text[:at], "stop"
        if self.count >= self._most:
            return text + self._detokenizer.rest(), "length"
        keep = max((n for stop in self._stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], ""
