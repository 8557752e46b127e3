"""What a customer may ask of a job of kind 8843: its parameters, each with its bounds. nips/14-tickets.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadInput, Unsupported
from nodewire.protocol.model import json_schema
from nodewire.protocol.model.generation_limits import (
    INTEGERS,
    LEAST_TEMPERATURE,
    MAX_BIASES,
    MAX_NEW_TOKENS,
    MAX_STOP_CHARS,
    MAX_STOPS,
    NUMBERS,
)

if TYPE_CHECKING:
    from nodewire.kind import Params
    from nodewire.protocol.model.manifest import Manifest

MAX_POSITIONS = 2**21


def checked(manifest: Manifest, params: Params) -> Params:
    """The parameters with their defaults, as they are sealed and served.

    Raises:
        BadInput: one that is none of the kind's, or out of its bounds; it is named.
        Unsupported: one that the model's ring, which answers tokens, cannot do.

    """
    if manifest.mode != "generate":
        _only(params, ())
        return {}
    _only(params, tuple(GENERATION))
    found = {name: check(params, manifest) for name, check in GENERATION.items()}
    found = {name: value for name, value in found.items() if value is not _LEFT_OUT}
    wanted = next((one for one in _OF_LOGITS if one in found), "temperature" if found["temperature"] else None)
    if wanted is not None and manifest.lends_its_head:
        raise Unsupported(wanted, "this model's ring answers the likeliest tokens alone, as at temperature 0")
    return found


def _only(params: Params, known: tuple[str, ...]) -> None:
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise BadInput(str(unknown[0])[:64], "not a parameter of this job")


def _integer(params: Params, name: str, default: int, low: int | None = None, high: int | None = None) -> int:
    """Within the bounds that are given, or those of `INTEGERS`."""
    low, high = INTEGERS[name] if low is None or high is None else (low, high)
    value: Any = params.get(name, default)
    if type(value) is not int or not low <= value <= high:
        raise BadInput(name, f"not an integer from {low} to {high}")
    return value


def _number(params: Params, name: str, default: float) -> float:
    low, high = NUMBERS[name]
    value: Any = params.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise BadInput(name, f"not a number from {low} to {high}")
    return float(value)


def _temperature(params: Params, manifest: Manifest) -> float:
    temperature = _number(params, "temperature", 0.0)
    if 0 < temperature < LEAST_TEMPERATURE:
        raise BadInput("temperature", f"between 0 and {LEAST_TEMPERATURE}; 0 is greedy")
    return temperature


def _top_p(params: Params, manifest: Manifest) -> float:
    top_p = _number(params, "top_p", 1.0)
    if top_p == 0:
        raise BadInput("top_p", "0 leaves no token")
    return top_p


def _stop(params: Params, manifest: Manifest) -> list[str]:
    stop = params.get("stop", [])
    if not isinstance(stop, list | tuple) or len(stop) > MAX_STOPS:
        raise BadInput("stop", f"not a list of at most {MAX_STOPS} strings")
    if not all(isinstance(s, str) and 0 < len(s) <= MAX_STOP_CHARS for s in stop):
        raise BadInput("stop", f"a stop string is empty or longer than {MAX_STOP_CHARS} characters")
    return list(stop)


def _special_tokens(params: Params, manifest: Manifest) -> Any:
    special = params.get("special_tokens", True)
    if not isinstance(special, bool):
        raise BadInput("special_tokens", "neither true nor false")
    return _LEFT_OUT if special else False


def _max_tokens(params: Params, manifest: Manifest) -> int:
    most = min(manifest.context or MAX_NEW_TOKENS, MAX_NEW_TOKENS)
    return _integer(params, "max_tokens", 128, 1, most)


def _positions(params: Params, manifest: Manifest) -> Any:
    if params.get("positions") is None:
        return _LEFT_OUT
    return _integer(params, "positions", 0, 1, manifest.context or MAX_POSITIONS)


def _logit_bias(params: Params, manifest: Manifest) -> Any:
    biases: Any = params.get("logit_bias", {})
    if not isinstance(biases, Mapping) or len(biases) > MAX_BIASES:
        raise BadInput("logit_bias", f"not a map of at most {MAX_BIASES} token ids")
    if not all(isinstance(token, str) and re.fullmatch("0|[1-9][0-9]{0,6}", token) for token in biases):
        raise BadInput("logit_bias", "a token id is not a decimal text without leading zeros")
    return {token: _number({"logit_bias": bias}, "logit_bias", 0.0) for token, bias in biases.items()}


def _logprobs(params: Params, manifest: Manifest) -> Any:
    return _LEFT_OUT if params.get("logprobs") is None else _integer(params, "logprobs", 0)


def _json_schema(params: Params, manifest: Manifest) -> Any:
    return _LEFT_OUT if params.get("json_schema") is None else json_schema.check(params["json_schema"])


def _json_object(params: Params, manifest: Manifest) -> Any:
    wanted = params.get("json_object", False)
    if not isinstance(wanted, bool):
        raise BadInput("json_object", "neither true nor false")
    if wanted and params.get("json_schema") is not None:
        raise BadInput("json_object", "json_schema says already what the text is")
    return wanted or _LEFT_OUT


def _apart(params: Params, manifest: Manifest) -> Any:
    apart = params.get("apart", "")
    if not isinstance(apart, str) or re.fullmatch("[0-9a-f]{0,64}", apart) is None:
        raise BadInput("apart", "not at most 64 hex digits")
    return apart or _LEFT_OUT


def _unless(default: Any, read: Callable[..., Any], name: str) -> Callable[[Params, Manifest], Any]:
    """A parameter that is left out where it has its default."""

    def check(params: Params, _: Manifest) -> Any:
        value = read(params, name, default)
        return _LEFT_OUT if value == default else value

    return check


_OF_LOGITS = (
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("logprobs", "json_schema", "json_object"),
)
"""What asks for more than the likeliest token, as a temperature does; left out where it has its default."""
_LEFT_OUT = object()
"""What a parameter is that has its default, if it is left out then: so documents are as they ever were."""
GENERATION: dict[str, Callable[[Params, Manifest], Any]] = {
    "max_tokens": _max_tokens,
    "temperature": _temperature,
    "top_p": _top_p,
    "seed": lambda params, _: _integer(params, "seed", 0),
    "stop": _stop,
    "special_tokens": _special_tokens,
    "top_k": _unless(0, _integer, "top_k"),
    "min_p": _unless(0.0, _number, "min_p"),
    "repetition_penalty": _unless(1.0, _number, "repetition_penalty"),
    "presence_penalty": _unless(0.0, _number, "presence_penalty"),
    "frequency_penalty": _unless(0.0, _number, "frequency_penalty"),
    "logit_bias": lambda params, manifest: _logit_bias(params, manifest) or _LEFT_OUT,
    "logprobs": _logprobs,
    "json_schema": _json_schema,
    "json_object": _json_object,
    "positions": _positions,
    "apart": _apart,
}
"""The parameters of a generation (nips/14-tickets.md): each has its value or default from what the customer sent."""
