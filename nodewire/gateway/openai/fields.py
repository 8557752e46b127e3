"""The fields of OpenAI's requests: what each becomes here, what means nothing, and what is refused by its name."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nodewire.gateway.openai.refusals import bad_request, unsupported
from nodewire.gateway.openai.response_format import FORMAT, shape
from nodewire.protocol.model.generation_limits import (
    INTEGERS,
    LEAST_TEMPERATURE,
    MAX_BIASES,
    MAX_NEW_TOKENS,
    MAX_STOP_CHARS,
    MAX_STOPS,
    NUMBERS,
)

Body = Mapping[str, Any]


def _number(name: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise bad_request(f"{name}: not a number from {low:g} to {high:g}", name)
    return float(value)


def _integer(name: str, value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise bad_request(f"{name}: not an integer from {low} to {high}", name)
    return value


def _bounded(name: str, value: Any) -> float:
    return _number(name, value, *NUMBERS[name])


def _temperature(name: str, value: Any) -> float:
    found = _number(name, value, 0, 2)  # which is OpenAI's most
    return 0.0 if found < LEAST_TEMPERATURE else found  # nearer to greedy than the sampler can be


def _top_p(name: str, value: Any) -> float:
    found = _bounded(name, value)
    if found == 0:
        raise bad_request("top_p: 0 leaves no token", name)
    return found


def _seed(name: str, value: Any) -> int:
    most = INTEGERS["seed"][1]
    return _integer(name, value, -most - 1, most) % (most + 1)


def _stop(name: str, value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise bad_request(f"stop: neither a string nor a list of at most {MAX_STOPS}", name)
    if not all(isinstance(one, str) and 0 < len(one) <= MAX_STOP_CHARS for one in stops):
        raise bad_request(f"stop: not strings of 1 to {MAX_STOP_CHARS} characters", name)
    return stops


def _max_tokens(name: str, value: Any) -> int:
    return _integer(name, value, 1, MAX_NEW_TOKENS)


def _top_k(name: str, value: Any) -> int:
    return max(0, _integer(name, value, -1, INTEGERS["top_k"][1]))  # -1 is how others say that there is no bound


def _logit_bias(name: str, value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise bad_request(f"{name}: not an object of at most {MAX_BIASES} token ids", name)
    if not all(re.fullmatch("0|[1-9][0-9]{0,6}", token) for token in value):
        raise bad_request(f"{name}: a key is not a token id", name)
    return {token: _bounded(name, bias) for token, bias in value.items()}


SAMPLING: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "max_tokens": ("max_tokens", _max_tokens),
    "max_completion_tokens": ("max_tokens", _max_tokens),
    "temperature": ("temperature", _temperature),
    "top_p": ("top_p", _top_p),
    "seed": ("seed", _seed),
    "stop": ("stop", _stop),
    "presence_penalty": ("presence_penalty", _bounded),
    "frequency_penalty": ("frequency_penalty", _bounded),
    "logit_bias": ("logit_bias", _logit_bias),
    "top_k": ("top_k", _top_k),
    "min_p": ("min_p", _bounded),
    "repetition_penalty": ("repetition_penalty", _bounded),
}
"""By OpenAI's name (the last three are what other servers have), the parameter of the job (kind 8843) that it becomes,
and how its value is read."""

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "functions": ([],),
    "function_call": ("none",),
    "parallel_tool_calls": (True,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "dimensions": (),
}
"""What cannot be honoured, with the values that ask for nothing; null is one of every field."""

HARMLESS = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})
"""What changes no answer."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Whether the answer comes piece by piece, and its usage at the end."""

    wanted: bool = False
    usage: bool = False


@dataclass(frozen=True, slots=True)
class RequestFields:
    """What requests have in common."""

    model: str
    stream: StreamOptions
    params: dict[str, Any] = field(default_factory=dict)
    """Of the job."""
    names: dict[str, str] = field(default_factory=dict)
    """By parameter of the job, the request's field that said it."""


def asked(body: Body, own: frozenset[str], *, generates: bool = True) -> RequestFields:
    """What `body` asks for; `own` are the fields that the endpoint reads itself.

    Raises:
        Refusal: a field is missing, malformed, unknown, or cannot be honoured.

    """
    common = {"model", "stream", "stream_options", "logprobs", FORMAT, *SAMPLING} if generates else {"model"}
    for name, value in body.items():
        if name in own or name in common or name in HARMLESS or value is None:
            continue
        if name not in NEUTRAL:
            raise unsupported(name[:64], f"Unrecognized or unsupported request argument: {name[:64]}")
        if not any(type(value) is type(one) and value == one for one in _numbers(NEUTRAL[name], value)):
            raise unsupported(name, f"{name}: this model cannot do that; leave it out")
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise bad_request("you must provide a model parameter", "model")
    if not generates:
        return RequestFields(model, StreamOptions())
    return RequestFields(model, _streaming(body), *_params(body))


def _params(body: Body) -> tuple[dict[str, Any], dict[str, str]]:
    """The job's parameters, and the fields that they are from.

    OpenAI's defaults: a temperature of 1, and a seed of its own for each request.
    """
    found: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, (parameter, read) in SAMPLING.items():
        if body.get(name) is not None:
            found[parameter], names[parameter] = read(name, body[name]), name
    for parameter, value in shape(body.get(FORMAT)).items():
        found[parameter], names[parameter] = value, FORMAT
    found.setdefault("temperature", 1.0)
    if found["temperature"] > 0:
        found.setdefault("seed", secrets.randbelow(2**63))
    return found, names


def logprobs_of_chat(body: Body) -> dict[str, int]:
    """The job's parameter for a chat's log-probabilities: `top_logprobs` says of how many others."""
    wanted, most = body.get("logprobs"), body.get("top_logprobs")
    if wanted is not None and not isinstance(wanted, bool):
        raise bad_request("logprobs: neither true nor false", "logprobs")
    if most is not None:
        most = _integer("top_logprobs", most, *INTEGERS["logprobs"])
        if most and not wanted:
            raise bad_request("top_logprobs: only with logprobs", "top_logprobs")
    return {"logprobs": most or 0} if wanted else {}


def logprobs_of_completion(body: Body) -> dict[str, int]:
    """The same of a completion, whose `logprobs` is the number itself."""
    if (wanted := body.get("logprobs")) is None:
        return {}
    return {"logprobs": _integer("logprobs", wanted, *INTEGERS["logprobs"])}


def _streaming(body: Body) -> StreamOptions:
    stream, options = body.get("stream"), body.get("stream_options")
    if stream is not None and not isinstance(stream, bool):
        raise bad_request("stream: neither true nor false", "stream")
    if options is None:
        return StreamOptions(bool(stream))
    if not stream:
        raise bad_request("stream_options: only with stream", "stream_options")
    if not isinstance(options, dict) or not options.keys() <= {"include_usage", "include_obfuscation"}:
        raise bad_request("stream_options: only include_usage is known", "stream_options")
    usage = options.get("include_usage", False)
    if not isinstance(usage, bool):
        raise bad_request("stream_options.include_usage: neither true nor false", "stream_options")
    return StreamOptions(True, usage)


def _numbers(values: tuple[Any, ...], said: Any) -> tuple[Any, ...]:
    """0 is 0.0, and neither is False."""
    return tuple(float(v) if type(v) is int and type(said) is float else v for v in values)
