"""What a generation may be asked for, beyond what tests/provider/inference/test_provider_job.py tries."""

from types import SimpleNamespace

import pytest

from kinds.k8843 import KIND
from kinds.k8843_parameters import GENERATION
from nodewire.errors import BadInput, Unsupported
from nodewire.llm.tokens.sampling_params import parse_params
from nodewire.protocol.model.generation_limits import INTEGERS, NUMBERS

TALKER = SimpleNamespace(mode="generate", context=1_000, lends_its_head=False)
LENT = SimpleNamespace(mode="generate", context=1_000, lends_its_head=True)
SCHEMA = '{"type":"object"}'


def test_what_is_not_asked_for_is_left_out_and_so_documents_stay_as_they_were():
    plain = KIND.check(TALKER, {})
    assert plain.keys() == {"max_tokens", "temperature", "top_p", "seed", "stop"} | ({"special_tokens"} & plain.keys())
    neutral = {"logprobs": None, "json_schema": None, "json_object": False, "logit_bias": {}, "top_k": 0}
    assert KIND.check(TALKER, neutral) == plain


@pytest.mark.parametrize(
    "asked", [{"positions": 100}, {"logprobs": 0}, {"logprobs": 20}, {"json_schema": SCHEMA}, {"json_object": True}]
)
def test_what_is_asked_for_stays_checked_twice_or_once(asked):
    once = KIND.check(TALKER, asked)
    assert {name: once[name] for name in asked} == asked
    assert KIND.check(TALKER, once) == once
    parse_params(once, 100)  # and a driver takes it


@pytest.mark.parametrize(
    "asked",
    [
        {"logprobs": 21},
        {"logprobs": -1},
        {"logprobs": True},
        {"logprobs": 1.0},
        {"logprobs": "3"},
        {"json_object": 1},
        {"json_object": None},
        {"json_object": True, "json_schema": SCHEMA},
        {"json_schema": ""},
        {"json_schema": {"type": "object"}},
        {"json_schema": "[]"},
        {"json_schema": "x" * 9_000},
        {"prefixes": "somebody else"},
        {"apart": "somebody"},
        {"apart": "a" * 65},
        {"apart": None},
        {"positions": 0},
        {"positions": 1_001},
        {"positions": 64.0},
        {"positions": True},
    ],
    ids=lambda asked: str(asked)[:40],
)
def test_what_is_out_of_bounds_is_refused_by_name(asked):
    with pytest.raises(BadInput) as refused:
        KIND.check(TALKER, asked)
    assert refused.value.field == next(iter(asked))


def test_a_driver_knows_every_parameter_of_the_table():
    examples = {"max_tokens": 5, "temperature": 0.5, "top_p": 0.5, "seed": 1, "stop": ["x"], "special_tokens": False}
    examples |= {"top_k": 2, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 1, "frequency_penalty": 1}
    examples |= {"logit_bias": {"5": 1.0}, "logprobs": 2, "json_schema": SCHEMA, "positions": 77, "apart": "ab"}
    assert examples.keys() | {"json_object"} == GENERATION.keys()
    parse_params(KIND.check(TALKER, examples), 100)


@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 0.5},
        {"repetition_penalty": 1.2},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"logit_bias": {"3": 0.0}},
        {"logprobs": 0},
        {"json_schema": SCHEMA},
        {"json_object": True},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_of_a_ring_that_answers_tokens_nothing_is_asked_that_needs_logits(asked):
    KIND.check(TALKER, asked)
    with pytest.raises(Unsupported) as refused:
        KIND.check(LENT, asked)
    assert refused.value.field == next(iter(asked))
    likeliest = {"top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": 4, "stop": ["x"], "max_tokens": 9}
    assert KIND.check(LENT, likeliest) == KIND.check(TALKER, likeliest)


@pytest.mark.parametrize(("name", "bounds"), [*NUMBERS.items(), *INTEGERS.items()])
def test_a_driver_takes_what_a_customer_may_ask_for_and_nothing_else(name, bounds):
    least, most = bounds
    step = 1 if name in INTEGERS else 0.01
    for value, is_right in ((least, name != "top_p"), (most, True), (least - step, False), (most + step, False)):
        asked = {name: {"7": value} if name == "logit_bias" else value}
        for read in (lambda said: KIND.check(TALKER, said), lambda said: parse_params({"seed": 1, **said}, 100)):
            if is_right:
                read(asked)
                continue
            with pytest.raises(BadInput) as refused:
                read(asked)
            assert refused.value.field == name
