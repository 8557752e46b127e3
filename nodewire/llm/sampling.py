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
from nodewire.llm.config import MAX_POSITIONS

MAX_STOPS = 8
MAX_STOP_CHARACTERS = 128


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


def parse_params(params: Mapping[str, Any], positions: int) -> Sampling:
    """The session's parameters; `max_tokens` is what fits the context unless given.

    `temperature` and `top_p` are numbers or, since signed documents hold no floats, decimal strings.

    Raises:
        BadInput: an unknown parameter, or one of the wrong type or out of range (it is named).
    """
    known = {"max_tokens", "temperature", "top_p", "seed", "stop", "special_tokens"}
    unknown = sorted(str(name)[:40] for name in params.keys() - known)
    if unknown:
        raise BadInput(unknown[0], "not a parameter of a session")
    temperature = _number(params, "temperature", 0.0, 0.0, 100.0)
    if 0 < temperature < 0.001:
        raise BadInput("temperature", "between 0 and 0.001; 0 is greedy")
    top_p = _number(params, "top_p", 1.0, 0.0, 1.0)
    if top_p == 0:
        raise BadInput("top_p", "0 leaves no token")
    if temperature > 0 and params.get("seed") is None:
        raise BadInput("seed", "needed when temperature is above 0")
    special = params.get("special_tokens")
    if special is not None and not isinstance(special, bool):
        raise BadInput("special_tokens", "neither true nor false")
    return Sampling(
        max_tokens=_integer(params, "max_tokens", positions, 1, MAX_POSITIONS),
        temperature=temperature,
        top_p=top_p,
        seed=_integer(params, "seed", 0, -(2**63), 2**64 - 1),
        stop=_stops(params.get("stop")),
        special_tokens=special is not False,
    )


def choose(logits: Tensor, sampling: Sampling, pos: int) -> int:
    """The token for position `pos`, from float32 logits [vocab].

    Greedy takes the largest logit. Otherwise the tokens are ordered by probability (softmax of logits over
    temperature, float64), the fewest that reach `top_p` are kept, and SHA-256(seed, pos) picks one.
    """
    if sampling.temperature == 0:
        return int(logits.argmax())
    probabilities, tokens = (logits.cpu().double() / sampling.temperature).softmax(0).sort(descending=True, stable=True)
    cumulative = probabilities.cumsum(0)
    kept = int((cumulative < sampling.top_p).sum()) + 1
    point = _uniform(sampling.seed, pos) * float(cumulative[min(kept, len(cumulative)) - 1])
    index = int(torch.searchsorted(cumulative, point, right=True))
    return int(tokens[min(index, len(tokens) - 1)])


def _uniform(seed: int, pos: int) -> float:
    """A number in [0, 1) with 53 random bits."""
    digest = hashlib.sha256(b"nodewire/sampling/1" + (seed % 2**64).to_bytes(8, "big") + pos.to_bytes(8, "big"))
    return (int.from_bytes(digest.digest()[:8], "big") >> 11) / 2**53


def _number(params: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = params.get(name)
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
        if not isinstance(stop, str) or not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            raise BadInput("stop", f"not a string of 1 to {MAX_STOP_CHARACTERS} characters")
    return tuple(stops)
