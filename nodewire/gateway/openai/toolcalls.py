"""Tool calls in a model's text, as Hermes and Qwen write them; what is no such call stays text, whole.

<tool_call>{"name": ..., "arguments": {...}}</tool_call>
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

import orjson

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


@dataclass(slots=True)
class ToolCalls:
    """Takes a text piece by piece; `found` are the calls so far, as OpenAI has them in a message."""

    found: list[dict[str, Any]] = field(default_factory=list)
    _held: str = ""
    """What may yet be, or is within, a call."""

    def push(self, piece: str) -> tuple[str, list[dict[str, Any]]]:
        """The text that is certainly none, and the calls that are whole now."""
        self._held += piece
        text, calls = "", list[dict[str, Any]]()
        while True:
            before, opened, rest = self._held.partition(_OPEN)
            said = before[: len(before) - _begun(before)].rstrip() if not opened else before.rstrip()
            inside, closed, after = rest.partition(_CLOSE)
            if not closed:  # the white space before a call belongs to it
                self._held = self._held[len(said) :]
                return text + said, calls
            call = _call(inside, len(self.found))
            if call is None:
                text += before + _OPEN + inside + _CLOSE
                self._held = after
            else:
                text += said
                self.found.append(call)
                calls.append(call)
                self._held = after

    def end(self) -> str:
        """What is left, which is no call."""
        left, self._held = self._held, ""
        return left if left.strip() else ""


def _begun(text: str) -> int:
    """How many characters at the end may be the beginning of a call."""
    return next((n for n in range(len(_OPEN) - 1, 0, -1) if text.endswith(_OPEN[:n])), 0)


def _call(inside: str, index: int) -> dict[str, Any] | None:
    try:
        said = orjson.loads(inside)
        if not isinstance(said, dict) or not isinstance(said.get("name"), str):
            return None
        arguments = said.get("arguments", {})
        if not isinstance(arguments, dict):
            return None
        function = {"name": said["name"], "arguments": orjson.dumps(arguments).decode()}
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # the latter: nested deeper than is written again
        return None
    return {"index": index, "id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
