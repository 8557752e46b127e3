"""What clients get: OpenAI's objects, whole and in pieces.

https://platform.openai.com/docs/api-reference
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from nodewire.gateway.openai.logprobs import Logprobs

Finish = Literal["stop", "length", "tool_calls"]
Calls = list[dict[str, Any]]


@dataclass(slots=True)
class Usage:
    """`requests` are the ids of the market's jobs, by which `nodewire audit` finds all of it."""

    prompt: int = 0
    completion: int = 0
    cost_msat: int = 0
    requests: tuple[str, ...] = ()
    cached: int = 0
    """Of the prompt's tokens, those that providers found and did not compute."""

    def document(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": min(self.cached, self.prompt)},
            "cost_msat": self.cost_msat,
            "cost_sat": f"{self.cost_msat // 1_000}.{self.cost_msat % 1_000:03}",
            "nodewire_requests": list(self.requests),
        }


@dataclass(slots=True)
class Reply:
    """One answer's objects. `chat`: of /v1/chat/completions, else of /v1/completions."""

    model: str
    chat: bool
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.id = self.id or f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}"

    def whole(self, text: str, calls: Calls, finish: Finish, usage: Usage, logprobs: Logprobs = None) -> dict[str, Any]:
        if self.chat:
            message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
            if calls:
                message["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in calls]
            choice: dict[str, Any] = {"message": message}
        else:
            choice = {"text": text}
        return {**self._object([self._choice(choice, finish, logprobs)], whole=True), "usage": usage.document()}

    def opening(self) -> dict[str, Any] | None:
        """Before the first piece."""
        return self._delta({"role": "assistant", "content": ""}) if self.chat else None

    def piece(self, text: str, logprobs: Logprobs = None) -> dict[str, Any]:
        said = {"delta": {"content": text}} if self.chat else {"text": text}
        return self._object([self._choice(said, None, logprobs)])

    def calls(self, calls: Calls) -> dict[str, Any]:
        return self._delta({"tool_calls": calls})

    def closing(self, finish: Finish) -> dict[str, Any]:
        return self._object([self._choice({"delta": {}} if self.chat else {"text": ""}, finish)])

    def usage(self, usage: Usage) -> dict[str, Any]:
        return {**self._object([]), "usage": usage.document()}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return self._object([self._choice({"delta": delta}, None)])

    def _choice(self, said: dict[str, Any], finish: Finish | None, logprobs: Logprobs = None) -> dict[str, Any]:
        return {"index": 0, **said, "logprobs": logprobs, "finish_reason": finish}

    def _object(self, choices: list[dict[str, Any]], *, whole: bool = False) -> dict[str, Any]:
        name = ("chat.completion" if whole else "chat.completion.chunk") if self.chat else "text_completion"
        return {"id": self.id, "object": name, "created": self.created, "model": self.model, "choices": choices}
