"""A session's parameters, and the next token from logits: the same parameters and logits always give the same token.

Randomness is drawn from the seed and the position alone, so a replay (failover, verification) samples what was sampled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nodewire.errors import BadInput
from nodewire.llm.spec.config import MAX_POSITIONS
from nodewire.protocol.model import json_schema, token_list
from nodewire.protocol.model.generation_limits import (
    INTEGERS,
    LEAST_TEMPERATURE,
    MAX_BIASES,
    MAX_STOP_CHARS,
    MAX_STOPS,
    NUMBERS,
)
from nodewire.protocol.speculation.frame_meta import MAX_LOOKAHEAD

_KNOWN = frozenset(
    {"max_tokens", "temperature", "top_p", "seed", "stop", "special_tokens", "lookahead", "top_k", "min_p"}
    | {"repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs"}
    | {"json_schema", "json_object", "positions", "apart", token_list.SAID, token_list.BESIDE}
)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a session generates. `temperature` 0 is greedy; above it a seed is needed."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    special_tokens: bool = True
    """Whether the tokenizer adds its own to the prompt; a chat template has written them itself."""
    lookahead: int = 1
    """The most rows around the ring whose verdict is out: 1 is one token after the other."""
    top_k: int = 0
    """The most tokens that are drawn from; 0 is no bound."""
    min_p: float = 0.0
    """Tokens less likely than this share of the likeliest are not drawn."""
    repetition_penalty: float = 1.0
    """Divides the positive logits of tokens that came, prompt included, and multiplies the negative (1909.05858)."""
    presence_penalty: float = 0.0
    """Taken from the logits of tokens that were generated (OpenAI's)."""
    frequency_penalty: float = 0.0
    """Taken from them once for each time."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    """How many of the likeliest tokens are told with their log-probabilities, beside the chosen one; None: none."""
    json_schema: str = ""
    """Whose instances are the only text, unless empty."""
    positions: int = MAX_POSITIONS
    """The most of the session, prompt included."""
    said: tuple[int | None, ...] | None = None
    """Of a session that judges another's: the tokens that the other said, by number, None where it is not known."""
    beside: tuple[int | None, ...] = ()
    """Those of a third, of which it is to say whether they are excused."""

    @property
    def needs_logits(self) -> str | None:
        """The parameter, if there is one, for which the likeliest token by the model's own logits will not do."""
        wanted = {
            "temperature": self.temperature > 0,
            "repetition_penalty": self.repetition_penalty != 1,
            "presence_penalty": self.presence_penalty != 0,
            "frequency_penalty": self.frequency_penalty != 0,
            "logit_bias": bool(self.logit_bias),
            "logprobs": self.logprobs is not None,
            "json_schema": bool(self.json_schema),
        }
        return next((name for name, is_wanted in wanted.items() if is_wanted), None)


def parse_params(params: Mapping[str, Any], positions: int) -> Sampling:
    """The session's parameters; `max_tokens` is what fits the context unless given.

    Numbers with a fraction are numbers or, since signed documents hold no floats, decimal strings.

    Raises:
        BadInput: an unknown parameter, or one of the wrong type or out of range (it is named).

    """
    unknown = sorted(str(name)[:40] for name in params.keys() - _KNOWN)
    if unknown:
        raise BadInput(unknown[0], "not a parameter of a session")
    temperature = _number(params, "temperature", 0.0)
    if 0 < temperature < LEAST_TEMPERATURE:
        raise BadInput("temperature", f"between 0 and {LEAST_TEMPERATURE}; 0 is greedy")
    top_p = _number(params, "top_p", 1.0)
    if top_p == 0:
        raise BadInput("top_p", "0 leaves no token")
    if temperature > 0 and params.get("seed") is None:
        raise BadInput("seed", "needed when temperature is above 0")
    return Sampling(
        max_tokens=_integer(params, "max_tokens", positions, 1, MAX_POSITIONS),
        temperature=temperature,
        top_p=top_p,
        seed=_integer(params, "seed", 0, *INTEGERS["seed"]),
        stop=_stops(params.get("stop")),
        special_tokens=_truth(params, "special_tokens", True),
        lookahead=_integer(params, "lookahead", 1, 1, MAX_LOOKAHEAD),
        top_k=_integer(params, "top_k", 0, *INTEGERS["top_k"]),
        min_p=_number(params, "min_p", 0.0),
        repetition_penalty=_number(params, "repetition_penalty", 1.0),
        presence_penalty=_number(params, "presence_penalty", 0.0),
        frequency_penalty=_number(params, "frequency_penalty", 0.0),
        logit_bias=_biases(params.get("logit_bias")),
        logprobs=None if params.get("logprobs") is None else _integer(params, "logprobs", 0, *INTEGERS["logprobs"]),
        json_schema=_schema(params),
        positions=_integer(params, "positions", positions, 1, positions),
        said=token_list.unpack(token_list.SAID, params[token_list.SAID]) if token_list.SAID in params else None,
        beside=token_list.unpack(token_list.BESIDE, params.get(token_list.BESIDE, b"")),
    )


def choose(logits: Tensor, sampling: Sampling, pos: int) -> int:
    """The token for position `pos`, from float32 logits [vocab] of which at least one is finite.

    Greedy takes the largest logit. Otherwise the tokens are ordered by probability (softmax of logits over
    temperature, float64); of the `top_k` first that `min_p` leaves, the fewest that reach the share `top_p` of their
    sum are kept, and SHA-256(seed, pos) picks one.
    """
    return ranked(logits, sampling, pos, 1)[0]


def ranked(logits: Tensor, sampling: Sampling, pos: int, most: int) -> list[int]:
    """The token that `choose` takes, and up to `most` in all that it would take if logits were a little different."""
    if sampling.temperature == 0:
        return [int(logits.argmax())] if most == 1 else [int(token) for token in logits.topk(most).indices]
    probabilities, tokens = (logits.cpu().double() / sampling.temperature).softmax(0).sort(descending=True, stable=True)
    cumulative = probabilities.cumsum(0)
    left = len(tokens)
    if sampling.min_p:
        left = int((probabilities >= sampling.min_p * float(probabilities[0])).sum())
    if sampling.top_k:
        left = min(left, sampling.top_k)
    share = sampling.top_p if left == len(tokens) else sampling.top_p * float(cumulative[left - 1])
    kept = min(int((cumulative < share).sum()) + 1, left)
    point = point_of(sampling, pos) * float(cumulative[kept - 1])
    index = min(int(torch.searchsorted(cumulative, point, right=True)), kept - 1)
    if most == 1:
        return [int(tokens[index])]
    near = sorted(range(max(0, index - most), min(kept, index + most)), key=lambda other: abs(other - index))
    return [int(tokens[other]) for other in near[:most]]


def point_of(sampling: Sampling, pos: int) -> float:
    """Where in what is kept the token for position `pos` is drawn, in [0, 1)."""
    return _uniform(sampling.seed, pos)


def _uniform(seed: int, pos: int) -> float:
    """A number in [0, 1) with 53 random bits."""
    digest = hashlib.sha256(b"nodewire/sampling/1" + (seed % 2**64).to_bytes(8, "big") + pos.to_bytes(8, "big"))
    return (int.from_bytes(digest.digest()[:8], "big") >> 11) / 2**53


def _truth(params: Mapping[str, Any], name: str, default: bool) -> bool:
    value = params.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadInput(name, "neither true nor false")
    return default if value is None else value


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    """Token ids, as numbers or decimal strings, to what is added to their logits."""
    if value is None:
        return ()
    if not isinstance(value, Mapping) or len(value) > MAX_BIASES:
        raise BadInput("logit_bias", f"not a map of at most {MAX_BIASES} tokens")
    found = {}
    for key, bias in value.items():
        token = int(key) if isinstance(key, str) and key.isdecimal() and len(key) <= 9 else key
        if type(token) is not int or not 0 <= token < 2**31:
            raise BadInput("logit_bias", f"{str(key)[:40]} is not a token's id")
        if token in found:
            raise BadInput("logit_bias", f"token {token} stands twice")
        found[token] = _number({"logit_bias": bias}, "logit_bias", 0.0)
    return tuple(sorted(found.items()))


def _schema(params: Mapping[str, Any]) -> str:
    schema = params.get("json_schema")
    if not _truth(params, "json_object", False):
        return "" if schema is None else json_schema.check(schema)
    if schema is not None:
        raise BadInput("json_object", "json_schema says already what the text is")
    return json_schema.ANY_OBJECT


def _number(params: Mapping[str, Any], name: str, default: float) -> float:
    value, (low, high) = params.get(name), NUMBERS[name]
    if value is None:
        return default
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        number = None
    if number is None or not low <= number <= high:
        raise BadInput(name, f"{str(value)[:40]} is not a number from {low} to {high}")
    return number


def _integer(params: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = params.get(name)
    if value is None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise BadInput(name, f"{str(value)[:40]} is not an integer from {low} to {high}")
    return value


def _stops(value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else () if value is None else value
    if not isinstance(stops, list | tuple) or len(stops) > MAX_STOPS:
        raise BadInput("stop", f"not a string or a list of up to {MAX_STOPS}")
    for stop in stops:
        if not isinstance(stop, str) or not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise BadInput("stop", f"not a string of 1 to {MAX_STOP_CHARS} characters")
    return tuple(stops)
