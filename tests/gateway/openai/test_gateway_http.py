"""The endpoints, before a stand-in for the customer; tests/market/buy/test_market_gateway.py has the real one."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from itertools import chain

import numpy as np
import pytest

from nodewire.errors import TABLE, BadInput, BadPlan, NoProvider, OverBudget, TooLarge, Unsupported, WorkerFailed
from nodewire.gateway.config import KeyConfig
from nodewire.gateway.keys import sha256_of
from nodewire.gateway.openai.fields import NEUTRAL, SAMPLING
from nodewire.gateway.openai.refusals import SHAPES, error_body
from tests.gateway.counter import AUTHOR, KEY, PRICE_MSAT, StandIn, opened

CHAT = {"model": "talker", "messages": [{"role": "user", "content": "hello"}]}
TEXT = {"model": "plain", "prompt": "hello"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}


SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"enum": [1, 2]}}}


def bound(schema, **said):
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **said}}


def nested(depth):
    return {"items": nested(depth - 1)} if depth else {}


NO_FORMATS = [
    "json",
    {},
    {"type": "xml"},
    {"type": ["text"]},
    {"type": "text", "more": 1},
    {"type": "json_object", "schema": {}},
    {"type": "json_schema"},
    {"type": "json_schema", "json_schema": []},
    {"type": "json_schema", "json_schema": {"name": "n"}},
    bound(SCHEMA, name="no name"),
    bound(SCHEMA, name=7),
    bound(SCHEMA, strict="yes"),
    bound(SCHEMA, description=["x"]),
    bound(SCHEMA, more=1),
    bound([]),
    bound({"description": "x" * 8_200}),
    bound({"description": '"' * 4_100}),
    bound(nested(32)),
    bound({"enum": list(range(513))}),
    bound({"anyOf": [{"enum": [1, 2]}] * 171}),
]


async def streamed(gateway, path, body):
    """The events of an answer, and whether it said that it was done."""
    async with gateway.client.post(path, json={**body, "stream": True}) as answer:
        assert answer.content_type == "text/event-stream"
        lines = [line for line in (await answer.text()).splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    done = lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in (lines[:-1] if done else lines)], done


async def test_a_completion_has_text_reason_and_what_it_cost(tmp_path):
    async with opened(tmp_path) as gateway:
        status, said = await gateway.post("completions", TEXT)
        assert gateway.accounts.spent_msat("somebody") == 3 * PRICE_MSAT
    assert (status, said["object"], said["model"]) == (200, "text_completion", "plain")
    assert (said["choices"][0]["text"], said["choices"][0]["finish_reason"]) == ("one two three", "stop")
    usage = said["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (10, 3, 13)
    assert (usage["cost_msat"], usage["cost_sat"]) == (3 * PRICE_MSAT, "2.100")
    assert usage["nodewire_requests"] == [f"{1:064x}"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 7}


async def test_a_chat_is_the_template_of_its_messages_without_further_special_tokens(tmp_path):
    async with opened(tmp_path) as gateway:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        said = [{"role": "developer", "content": "brief"}, {"role": "user", "content": parts}]
        status, answer = await gateway.post("chat/completions", {"model": "talker", "messages": said})
        (order,) = gateway.buyer.orders
    assert (status, answer["object"]) == (200, "chat.completion")
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "one two three", "refusal": None}
    assert order.prompt == "system:brief;user:a\nb;"
    assert order.params["special_tokens"] is False and order.params["max_tokens"] == 1_000


async def test_sampling_is_openais_with_its_defaults(tmp_path):
    async with opened(tmp_path) as gateway:
        await gateway.post("completions", TEXT)
        asked = {"temperature": 0, "top_p": 0.5, "seed": -1, "stop": "x", "max_tokens": 7, "user": "u", "n": 1}
        await gateway.post("completions", {**TEXT, **asked, "logit_bias": None})
        changed = {"presence_penalty": 1, "frequency_penalty": -0.5, "logit_bias": {"5": -100}, "min_p": 0.1}
        changed["top_k"] = -1
        await gateway.post("completions", {**TEXT, **asked, **changed, "repetition_penalty": 1.1})
        first, second, third = (order.params for order in gateway.buyer.orders)
    assert (first["temperature"], first["max_tokens"]) == (1.0, 16) and 0 <= first["seed"] < 2**63
    apart = {"apart": second["apart"]}
    assert second == {"temperature": 0.0, "top_p": 0.5, "seed": 2**63 - 1, "stop": ["x"], "max_tokens": 7} | apart
    assert third == {**second, **changed, "top_k": 0, "repetition_penalty": 1.1}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", {**TEXT, "temperature": 2.1}, "temperature"),
        ("completions", {**TEXT, "temperature": True}, "temperature"),
        ("completions", {**TEXT, "top_p": 0}, "top_p"),
        ("completions", {**TEXT, "max_tokens": 0}, "max_tokens"),
        ("completions", {**TEXT, "max_tokens": 5_000}, "max_tokens"),
        ("completions", {**TEXT, "max_tokens": 10**30}, "max_tokens"),
        ("completions", {**TEXT, "seed": 1.5}, "seed"),
        ("completions", {**TEXT, "stop": ["x"] * 5}, "stop"),
        ("completions", {**TEXT, "stop": [""]}, "stop"),
        ("completions", {**TEXT, "stream_options": {"include_usage": True}}, "stream_options"),
        ("completions", {**TEXT, "stream": "yes"}, "stream"),
        ("completions", {**TEXT, "n": 2}, "n"),
        ("completions", {**TEXT, "n": True}, "n"),
        ("completions", {**TEXT, "best_of": 3}, "best_of"),
        ("completions", {**TEXT, "echo": True}, "echo"),
        ("completions", {**TEXT, "logprobs": 21}, "logprobs"),
        ("completions", {**TEXT, "logprobs": -1}, "logprobs"),
        ("completions", {**TEXT, "logprobs": True}, "logprobs"),
        ("completions", {**TEXT, "top_logprobs": 1}, "top_logprobs"),
        ("completions", {**TEXT, "logit_bias": {"five": 1}}, "logit_bias"),
        ("completions", {**TEXT, "frequency_penalty": 2.1}, "frequency_penalty"),
        ("completions", {**TEXT, "min_p": -0.1}, "min_p"),
        ("completions", {**TEXT, "temperature": -0.1}, "temperature"),
        ("completions", {**TEXT, "temperature": 1e308}, "temperature"),
        ("completions", {**TEXT, "temperature": "hot"}, "temperature"),
        ("completions", {**TEXT, "temperature": [1]}, "temperature"),
        ("completions", {**TEXT, "top_p": 1.01}, "top_p"),
        ("completions", {**TEXT, "top_p": -1e-9}, "top_p"),
        ("completions", {**TEXT, "seed": 2**63}, "seed"),
        ("completions", {**TEXT, "max_tokens": 1.0}, "max_tokens"),
        ("completions", {**TEXT, "max_tokens": "7"}, "max_tokens"),
        ("completions", {**TEXT, "stop": ["x" * 65]}, "stop"),
        ("completions", {**TEXT, "suffix": "x"}, "suffix"),
        ("completions", {**TEXT, "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ("completions", {**TEXT, "prompt": [1, 2]}, "prompt"),
        ("completions", {**TEXT, "prompt": ["a", "b"]}, "prompt"),
        ("completions", {**TEXT, "prompt": ""}, "prompt"),
        ("completions", {"prompt": "x"}, "model"),
        ("completions", {**TEXT, "model": "encoder"}, "model"),
        ("chat/completions", {**CHAT, "model": "plain"}, "model"),
        ("chat/completions", {**CHAT, "messages": []}, "messages"),
        ("chat/completions", {**CHAT, "messages": [{"role": "king", "content": "x"}]}, "messages[0]"),
        ("chat/completions", {**CHAT, "messages": [{"role": "user"}]}, "messages[0].content"),
        (
            "chat/completions",
            {**CHAT, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
        ),
        *(("chat/completions", {**CHAT, "response_format": one}, "response_format") for one in NO_FORMATS),
        (
            "chat/completions",
            {**CHAT, "tools": [TOOL], "response_format": {"type": "json_object"}},
            "response_format",
        ),
        ("chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ("chat/completions", {**CHAT, "tools": ["x"]}, "tools[0]"),
        ("chat/completions", {**CHAT, "n": 3}, "n"),
        ("chat/completions", {**CHAT, "logprobs": 1}, "logprobs"),
        ("chat/completions", {**CHAT, "top_logprobs": 5}, "top_logprobs"),
        ("chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 1.5}, "top_logprobs"),
        ("chat/completions", {**CHAT, "max_completion_tokens": -1}, "max_completion_tokens"),
        ("chat/completions", {**CHAT, "reasoning_effort": "high"}, "reasoning_effort"),
        ("chat/completions", {**CHAT, "chat_template_kwargs": []}, "chat_template_kwargs"),
        ("chat/completions", {**CHAT, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ("chat/completions", {**CHAT, "chat_template_kwargs": {"__class__": 1}}, "chat_template_kwargs"),
        ("chat/completions", {**CHAT, "chat_template_kwargs": {"a": "x" * 5_000}}, "chat_template_kwargs"),
        ("chat/completions", {**CHAT, "chat_template_kwargs": {f"a{n}": 1 for n in range(17)}}, "chat_template_kwargs"),
        ("embeddings", {"model": "encoder", "input": [1, 2]}, "input"),
        ("embeddings", {"model": "encoder", "input": []}, "input"),
        ("embeddings", {"model": "encoder", "input": "x", "encoding_format": "hex"}, "encoding_format"),
        ("embeddings", {"model": "encoder", "input": "x", "dimensions": 2}, "dimensions"),
        ("embeddings", {"model": "encoder", "input": "x", "temperature": 1}, "temperature"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_its_name_and_costs_nothing(tmp_path, path, body, param):
    async with opened(tmp_path) as gateway:
        status, _, named = await gateway.refused(path, body)
        assert (status, named) == (400, param)
        assert not gateway.buyer.orders


async def test_a_format_is_the_jobs_and_a_schemas_order_stays(tmp_path):
    async with opened(tmp_path) as gateway:
        for one in (None, {"type": "text"}, {"type": "json_object"}, bound(SCHEMA, strict=None), bound(SCHEMA)):
            assert (await gateway.post("chat/completions", {**CHAT, "response_format": one}))[0] == 200
        assert (await gateway.post("completions", {**TEXT, "response_format": bound(nested(31))}))[0] == 200
        asked = [
            {name: order.params.get(name) for name in ("json_object", "json_schema")} for order in gateway.buyer.orders
        ]
    text = '{"type":"object","properties":{"b":{"type":"string"},"a":{"enum":[1,2]}}}'
    nothing = {"json_object": None, "json_schema": None}
    assert asked[:3] == [nothing, nothing, {**nothing, "json_object": True}]
    assert asked[3] == asked[4] == {**nothing, "json_schema": text}
    assert asked[5]["json_schema"].count("items") == 31


def token(text, logprob):
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if text != "\ufffd" else None}


async def test_log_probabilities_of_a_chat_whole_and_streamed(tmp_path):
    async with opened(tmp_path, StandIn(says=["é", "", "end"], reason="eos")) as gateway:
        body = {**CHAT, "logprobs": True, "top_logprobs": 2}
        _, said = await gateway.post("chat/completions", body)
        assert gateway.buyer.orders[0].params["logprobs"] == 2
        told = said["choices"][0]["logprobs"]
        assert told["refusal"] is None and len(told["content"]) == 2  # an end token is no text
        assert told["content"][0] == {**token("é", -0.5), "top_logprobs": [token("É", -1.5), token("\ufffd", -2.5)]}
        came, _ = await streamed(gateway, "chat/completions", body)
        pieces = [c["logprobs"]["content"] for one in came for c in one["choices"] if c["logprobs"]]
        assert list(chain(*pieces)) == told["content"] and len(pieces) == 2
        _, said = await gateway.post("chat/completions", {**CHAT, "logprobs": True})
        assert said["choices"][0]["logprobs"]["content"][0] == {**token("é", -0.5), "top_logprobs": []}
        _, said = await gateway.post("chat/completions", {**CHAT, "logprobs": False, "top_logprobs": 0})
        assert said["choices"][0]["logprobs"] is None and "logprobs" not in gateway.buyer.orders[-1].params


async def test_log_probabilities_of_a_completion_whole_and_streamed(tmp_path):
    async with opened(tmp_path) as gateway:
        body = {**TEXT, "logprobs": 3}
        _, said = await gateway.post("completions", body)
        told = said["choices"][0]["logprobs"]
        assert told["tokens"] == ["one ", "two ", "three"] and told["token_logprobs"] == [-0.5] * 3
        assert told["text_offset"] == [0, 4, 8]
        assert told["top_logprobs"][0] == {"ONE ": -1.5, "\ufffd": -2.5, "one ": -0.5}  # of two with one text the first
        came, _ = await streamed(gateway, "completions", body)
        pieces = [c["logprobs"] for one in came for c in one["choices"] if c["logprobs"]]
        assert {name: list(chain(*(one[name] for one in pieces))) for name in told} == told and len(pieces) == 3
        _, said = await gateway.post("completions", {**TEXT, "logprobs": 0})
        assert said["choices"][0]["logprobs"]["top_logprobs"] == [None] * 3


async def test_what_a_driver_refuses_is_told_as_the_field_that_said_it(tmp_path):
    biased = {**TEXT, "logit_bias": {"100000": 1}}
    shaped = {**CHAT, "response_format": bound(SCHEMA)}
    cases = [
        ("completions", biased, BadInput("logit_bias", "beyond"), ("bad-input", "logit_bias")),
        ("completions", biased, BadInput("prompt", "empty"), ("bad-input", "prompt")),
        ("completions", biased, BadInput("provider", "ab reports bad-input"), ("bad-input", None)),  # whose fault?
        ("completions", TEXT, BadInput("provider", "ab reports bad-input"), ("bad-input", "prompt")),
        ("completions", biased, TooLarge("params", "17000 bytes"), ("too-large", None)),
        ("chat/completions", shaped, BadInput("json_schema", "none"), ("bad-input", "response_format")),
        ("chat/completions", shaped, Unsupported("json_schema", "none"), ("unsupported", "response_format")),
        (
            "chat/completions",
            {**CHAT, "logprobs": True},
            BadInput("logprobs", "not a parameter"),
            ("bad-input", "top_logprobs"),
        ),
        (
            "completions",
            {**TEXT, "max_completion_tokens": 5},
            BadInput("max_tokens", "too many"),
            ("bad-input", "max_completion_tokens"),
        ),
    ]
    async with opened(tmp_path) as gateway:
        for path, body, error, expected in cases:
            gateway.buyer.fails, gateway.buyer.says = error, []
            for stream in (False, True):
                assert await gateway.refused(path, {**body, "stream": stream}) == (400, *expected), error
            gateway.buyer.says = ["one "]
            came, done = await streamed(gateway, path, body)
            assert not done and came[-1]["error"]["param"] == expected[1]


async def test_bodies_that_are_none_are_told_in_the_same_shape(tmp_path):
    async with opened(tmp_path, max_body=1_000) as gateway:

        async def sent(data, type_="application/json"):
            async with gateway.client.post("completions", data=data, headers={"Content-Type": type_}) as answer:
                return answer.status, (await answer.json())["error"]["type"]

        wrong = "invalid_request_error"
        assert await sent(b"{") == (400, wrong)
        assert await sent(b"[]") == (400, wrong)
        assert await sent(b"\xff\xfe") == (400, wrong)
        assert await sent(b'{"n": NaN}') == (400, wrong)
        assert await sent(b"[" * 900) == (400, wrong)
        deep = b'{"messages": ' + b"[" * 400 + b"]" * 400 + b"}"
        assert await sent(deep) == (400, wrong)
        assert await sent(json.dumps(TEXT).encode(), "text/plain") == (400, wrong)  # what a web page could send
        assert await sent(b" " * 2_000) == (413, wrong)
        packed = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        async with gateway.client.post("completions", data=gzip.compress(b" " * 200_000), headers=packed) as answer:
            assert answer.status == 400  # and not 413: nothing is unpacked
        async with gateway.client.get("completions") as answer:
            assert answer.status == 405 and (await answer.json())["error"]["type"] == wrong
        async with gateway.client.get("nothing") as answer:
            assert answer.status == 404 and (await answer.json())["error"]["type"] == wrong
        assert await gateway.refused("completions", {**TEXT, "model": "gpt"}) == (404, "model_not_found", "model")


async def test_a_stream_comes_in_pieces_and_ends_with_its_usage(tmp_path):
    async with opened(tmp_path) as gateway:
        came, done = await streamed(gateway, "chat/completions", CHAT)
        assert done and all("usage" not in one for one in came)
        assert [c["delta"] for one in came for c in one["choices"]] == [
            {"role": "assistant", "content": ""},
            {"content": "one "},
            {"content": "two "},
            {"content": "three"},
            {},
        ]
        assert came[-1]["choices"][0]["finish_reason"] == "stop"
        came, done = await streamed(gateway, "completions", {**TEXT, "stream_options": {"include_usage": True}})
    assert done and "".join(c["text"] for one in came for c in one["choices"]) == "one two three"
    assert came[-1]["choices"] == [] and came[-1]["usage"]["cost_msat"] == 3 * PRICE_MSAT
    assert {one["usage"] for one in came[:-1]} == {None}


async def test_what_fails_before_the_first_piece_has_a_status_and_later_an_event(tmp_path):
    async with opened(tmp_path, StandIn(says=[], fails=NoProvider("model", "nobody serves it"))) as gateway:
        for stream in (False, True):
            assert await gateway.refused("completions", {**TEXT, "stream": stream}) == (503, "no-provider", None)
    async with opened(tmp_path, StandIn(fails=WorkerFailed("provider", "died"))) as gateway:
        assert await gateway.refused("completions", TEXT) == (502, "worker-failed", None)
        came, done = await streamed(gateway, "completions", TEXT)
        assert not done and came[-1]["error"]["code"] == "worker-failed"
        assert gateway.accounts.reserved_msat("somebody") == 0


async def test_a_budget_that_ends_an_answer_is_a_length(tmp_path):
    async with opened(tmp_path, StandIn(fails=OverBudget("max_total_msat", "used up"))) as gateway:
        status, said = await gateway.post("completions", TEXT)
        assert (status, said["choices"][0]["finish_reason"]) == (200, "length")
        came, done = await streamed(gateway, "completions", TEXT)
        assert done and came[-1]["choices"][0]["finish_reason"] == "length"


async def test_a_prompt_that_a_provider_refuses_is_the_clients(tmp_path):
    async with opened(tmp_path, StandIn(says=[], fails=TooLarge("provider", "ab reports too-large"))) as gateway:
        assert await gateway.refused("completions", TEXT) == (400, "context_length_exceeded", "prompt")
        assert await gateway.refused("chat/completions", CHAT) == (400, "context_length_exceeded", "messages")
    async with opened(tmp_path, StandIn(says=[], fails=BadPlan("provider", "ab reports bad-plan"))) as gateway:
        assert await gateway.refused("completions", TEXT) == (502, "bad-plan", None)  # which no client can mend


async def test_tool_calls_are_told_apart_from_text(tmp_path):
    call = '<tool_call>\n{"name": "look", "arguments": {"at": "é"}}\n</tool_call>'
    halves = ["I look. <tool", call[5:20], call[20:]]
    async with opened(tmp_path, StandIn(says=halves)) as gateway:
        _, said = await gateway.post("chat/completions", {**CHAT, "tools": [TOOL]})
        choice = said["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("I look.", "tool_calls")
        (made,) = choice["message"]["tool_calls"]
        assert made["function"]["name"] == "look" and json.loads(made["function"]["arguments"]) == {"at": "é"}
        assert "look" in gateway.buyer.orders[0].prompt
        came, _ = await streamed(gateway, "chat/completions", {**CHAT, "tools": [TOOL]})
        deltas = [one["choices"][0]["delta"] for one in came]
        assert "".join(delta.get("content", "") for delta in deltas) == "I look."
        assert sum("tool_calls" in delta for delta in deltas) == 1
        _, said = await gateway.post("chat/completions", CHAT)  # without tools it is text
        assert said["choices"][0]["message"]["content"] == "".join(halves)


async def test_a_tools_answer_goes_back_into_the_template(tmp_path):
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    said = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
    ]
    async with opened(tmp_path) as gateway:
        await gateway.post("chat/completions", {"model": "talker", "messages": said, "tools": [TOOL]})
        assert gateway.buyer.orders[0].prompt.endswith("user:go;assistant:;tool:seen;")
        call["function"]["arguments"] = "{"
        assert (await gateway.refused("chat/completions", {**CHAT, "messages": said}))[0] == 400


async def test_embeddings_are_numbers_or_base64(tmp_path):
    async with opened(tmp_path) as gateway:
        body = {"model": "encoder", "input": ["a", "bcd"]}
        _, said = await gateway.post("embeddings", body)
        assert [one["embedding"] for one in said["data"]] == [[1.0, 0.5], [3.0, 0.5]]
        assert (said["usage"]["prompt_tokens"], said["usage"]["cost_msat"]) == (6, PRICE_MSAT)
        assert "prompt_tokens_details" not in said["usage"]
        _, said = await gateway.post("embeddings", {**body, "encoding_format": "base64"})
        rows = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4").tolist() for one in said["data"]]
        assert rows == [[1.0, 0.5], [3.0, 0.5]]


async def test_a_template_is_told_what_the_client_says_of_it(tmp_path):
    async with opened(tmp_path) as gateway:
        await gateway.post("chat/completions", {**CHAT, "chat_template_kwargs": {"enable_thinking": False}})
        await gateway.post(
            "chat/completions", {**CHAT, "chat_template_kwargs": {"enable_thinking": True, "other": [1]}}
        )
        first, second = (order.prompt for order in gateway.buyer.orders)
    assert (first, second) == ("user:hello;at once", "user:hello;")


async def test_a_prompt_beyond_what_anybody_takes_is_told_as_one_beyond_the_context(tmp_path):
    long = "x" * 1_000_001
    async with opened(tmp_path, max_body=8 * 2**20) as gateway:
        assert await gateway.refused("completions", {**TEXT, "prompt": long}) == (
            400,
            "context_length_exceeded",
            "prompt",
        )
        for content in (long, "é" * 600_000):  # too many characters for a template, too many bytes for a prompt
            body = {**CHAT, "messages": [{"role": "user", "content": content}]}
            assert await gateway.refused("chat/completions", body) == (400, "context_length_exceeded", "messages")
        assert not gateway.buyer.orders


async def test_a_budget_that_is_spent_or_does_not_cover_a_request_is_the_keys(tmp_path):
    from nodewire.gateway.keys import sha256_of

    poor = [{"name": "somebody", "sha256": sha256_of(KEY), "budget_msat": 2 * PRICE_MSAT}]
    dear = OverBudget("max_total_msat", "one chunk costs more")
    quota = (429, "insufficient_quota", None)
    async with opened(tmp_path, StandIn(says=[], fails=dear), keys=poor) as gateway:
        for body in (TEXT, {**TEXT, "stream": True}):
            assert await gateway.refused("completions", body) == quota
        assert await gateway.refused("embeddings", {"model": "encoder", "input": "x"}) == quota
        assert (await gateway.post("completions", TEXT))[1]["error"]["type"] == "insufficient_quota"
    (tmp_path / "rich").mkdir()
    async with opened(tmp_path / "rich", StandIn(says=[], fails=dear)) as gateway:  # the gateway's own limits are tight
        assert await gateway.refused("completions", TEXT) == (503, "over-budget", None)
    (tmp_path / "spent").mkdir()
    async with opened(tmp_path / "spent", keys=poor) as gateway:
        assert (await gateway.post("completions", TEXT))[0] == 200
        assert await gateway.refused("completions", TEXT) == quota
        assert len(gateway.buyer.orders) == 1


async def test_who_asks_too_often_is_told_when_to_ask_again(tmp_path):
    from nodewire.gateway.keys import sha256_of

    slow = [{"name": "somebody", "sha256": sha256_of(KEY), "per_minute": 1}]
    async with opened(tmp_path, keys=slow) as gateway:
        assert (await gateway.post("completions", TEXT))[0] == 200
        async with gateway.client.post("completions", json=TEXT) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (429, "rate_limit_exceeded")
            assert 0 < int(answer.headers["Retry-After"]) <= 61 and answer.headers["x-should-retry"] == "true"


async def test_requests_under_way_at_once_are_told_and_booked_their_own_costs(tmp_path):
    async with opened(tmp_path) as gateway:
        bodies = [("completions", TEXT), ("embeddings", {"model": "encoder", "input": ["a", "b"]})] * 4
        told = await asyncio.gather(*(gateway.post(path, body) for path, body in bodies))
        usage = [said["usage"] for _, said in told]
        assert [one["cost_msat"] for one in usage] == [3 * PRICE_MSAT, PRICE_MSAT] * 4
        assert len({request for one in usage for request in one["nodewire_requests"]}) == len(bodies)
        assert gateway.accounts.spent_msat("somebody") == sum(one["cost_msat"] for one in usage)
        assert gateway.accounts.reserved_msat("somebody") == 0


@pytest.mark.parametrize(
    ("path", "body", "cost_msat"),
    [
        ("completions", TEXT, PRICE_MSAT),
        ("completions", {**TEXT, "stream": True}, PRICE_MSAT),
        ("embeddings", {"model": "encoder", "input": "x"}, PRICE_MSAT),
    ],
)
async def test_a_client_that_leaves_before_the_first_output_has_it_paid_and_no_more(tmp_path, path, body, cost_msat):
    """Providers compute it by then; a key whose jobs break off unpaid is refused, and all clients share the key."""
    held = StandIn()
    held.may_say.clear()
    async with opened(tmp_path, held) as gateway:
        asking = asyncio.create_task(gateway.post(path, body))
        while not (gateway.buyer.orders and gateway.buyer.orders[0].requests):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        while not gateway.desk.leaving:
            await asyncio.sleep(0)
        assert not gateway.buyer.orders[0].closed.is_set()
        held.may_say.set()
        while gateway.desk.in_flight:
            await asyncio.sleep(0)
        assert gateway.accounts.spent_msat("somebody") == cost_msat
        assert gateway.accounts.reserved_msat("somebody") == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_who_hangs_up_has_the_rest_not_bought(tmp_path, stream):
    async with opened(tmp_path, StandIn(hangs=True)) as gateway:
        asking = asyncio.create_task(gateway.post("completions", {**TEXT, "stream": stream}))
        while not (gateway.buyer.orders and gateway.buyer.orders[0].cost_msat == 3 * PRICE_MSAT):
            await asyncio.sleep(0)
        if stream:  # so that it hangs up in the middle of an answer
            await asyncio.sleep(0.05)
        asking.cancel()
        await asyncio.wait_for(gateway.buyer.orders[0].closed.wait(), 5)
        while gateway.desk.in_flight:
            await asyncio.sleep(0)
        assert gateway.accounts.spent_msat("somebody") == 3 * PRICE_MSAT
        assert gateway.accounts.reserved_msat("somebody") == 0


async def test_only_so_many_are_bought_for_at_a_time_and_only_so_long(tmp_path):
    async with opened(tmp_path, StandIn(hangs=True), max_requests=1, max_waiting=0, request_s=2) as gateway:
        first = asyncio.create_task(gateway.post("completions", TEXT))
        while not gateway.buyer.orders:
            await asyncio.sleep(0)
        assert await gateway.refused("completions", TEXT) == (503, "busy", None)
        status, said = await first
        assert (status, said["error"]["code"]) == (504, "timed-out")


async def test_keys_open_only_what_is_theirs(tmp_path):
    async with opened(tmp_path) as gateway:
        for wrong in ("", "Bearer", f"Bearer {KEY}x", f"Basic {KEY}", "Bearer " + "x" * 10_000):
            async with gateway.client.post(
                "completions", json=TEXT, headers={"Authorization": wrong[:7_000]}
            ) as answer:
                assert answer.status == 401
                assert (await answer.json())["error"]["code"] == "invalid_api_key"
        async with gateway.client.get("/metrics", headers={"Authorization": ""}) as answer:
            assert answer.status == 401
        async with gateway.client.get("/health", headers={"Authorization": ""}) as answer:
            assert (answer.status, (await answer.json())["epoch"]) == (200, 7)
    from nodewire.gateway.keys import sha256_of

    only = [{"name": "somebody", "sha256": sha256_of(KEY), "models": ["encoder"]}]
    async with opened(tmp_path / "other", keys=only) if (tmp_path / "other").mkdir() is None else None as gateway:
        async with gateway.client.get("models") as answer:
            assert [one["id"] for one in (await answer.json())["data"]] == ["encoder"]
        assert (await gateway.refused("completions", TEXT))[:2] == (404, "model_not_found")


async def test_a_page_of_another_origin_may_not_ask_unless_it_is_configured(tmp_path):
    async with opened(tmp_path, cors=["https://app.example"]) as gateway:
        status, said = await gateway.post("completions", TEXT, Origin="https://evil.example")
        assert (status, said["error"]["code"]) == (403, "origin") and not gateway.buyer.orders
        asks = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST", "Authorization": ""}
        async with gateway.client.options("completions", headers=asks) as answer:
            assert answer.status == 204
            assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
        async with gateway.client.post("completions", json=TEXT, headers={"Origin": "https://app.example"}) as answer:
            assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"


@pytest.mark.parametrize("path", ["models", "models/plain", "/metrics", "/health"])
async def test_without_keys_a_page_whose_host_is_made_to_stand_for_this_machine_reads_nothing(tmp_path, path):
    """To its browser it asks its own origin, of which a GET says nothing."""
    async with opened(tmp_path, keys=[]) as gateway:
        async with gateway.client.get(path, headers={"Host": "evil.example:8080"}) as answer:
            assert answer.status == 403 and (await answer.json())["error"]["code"] == "host"
        async with gateway.client.get(path, headers={"Host": "localhost:8080"}) as answer:
            assert answer.status == 200
        assert (await gateway.post("completions", TEXT, Host="evil.example"))[0] == 403 and not gateway.buyer.orders


async def test_with_keys_it_goes_by_whatever_name_it_has(tmp_path):
    async with opened(tmp_path) as gateway, gateway.client.get("models", headers={"Host": "api.example"}) as answer:
        assert answer.status == 200


async def test_metrics_count_what_was_answered(tmp_path):
    async with opened(tmp_path) as gateway:
        await gateway.post("completions", TEXT)
        await gateway.refused("completions", {**TEXT, "n": 2})
        async with gateway.client.get("/metrics") as answer:
            text = await answer.text()
    assert 'nodewire_gateway_requests_total{endpoint="/v1/completions",status="200"} 1.0' in text
    assert 'nodewire_gateway_requests_total{endpoint="/v1/completions",status="400"} 1.0' in text
    assert f'nodewire_gateway_cost_msat_total{{model="plain"}} {3.0 * PRICE_MSAT}' in text
    assert 'nodewire_gateway_tokens_total{model="plain",of="completion"} 3.0' in text
    assert 'nodewire_gateway_moves_total{model="plain",outcome="moved"} 1.0' in text


def test_every_error_of_the_table_has_its_shape():
    assert SHAPES.keys() == TABLE.keys()
    for code, error in TABLE.items():
        status, said = error_body(error("field", "reason"))
        assert 400 <= status < 600 and said["error"]["message"] == "field: reason", code


async def test_a_crowd_that_says_nothing_ends_nobodys_answer(tmp_path):
    """One address has most connections, and the answer's is the oldest of them."""
    asked = {**TEXT, "stream": True}
    async with (
        opened(tmp_path, StandIn(hangs=True)) as gateway,
        gateway.client.post("completions", json=asked) as answer,
    ):
        assert await answer.content.readline()
        port = int(str(answer.url.port))
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        async with gateway.client.get("/health") as healthy:
            assert (await healthy.json())["in_flight"] == 1
        assert not gateway.buyer.orders[0].closed.is_set()
        for _, writer in crowd:
            writer.close()


@pytest.mark.parametrize(("path", "whole"), [("chat/completions", CHAT), ("completions", TEXT)])
async def test_no_value_of_any_field_is_a_fault_of_the_gateways_own(tmp_path, path, whole):
    odd = [[], {}, [[]], [{"role": []}], 2**64, True]
    fields = [*SAMPLING, *NEUTRAL, "stream", "messages", "prompt", "logprobs", "tools", "response_format"]
    asked = [{**whole, field: value} for field in fields for value in odd]
    parts = ("role", "content", "name", "tool_calls", "tool_call_id") if "messages" in whole else ()
    asked += [{**whole, "messages": [{"role": "user", "content": "x", part: value}]} for part in parts for value in odd]
    async with opened(tmp_path) as gateway:
        for body in asked:
            async with gateway.client.post(path, json=body) as answer:
                assert answer.status in (200, 400), body


async def test_a_budget_is_not_given_to_two_when_a_job_is_bought_anew_at_a_higher_price(tmp_path):
    keys = [{"name": "somebody", "sha256": sha256_of(KEY), "budget_msat": 1_800_000}]
    async with opened(tmp_path, StandIn(hangs=True), keys=keys) as gateway:
        asking = []
        for number in range(2):
            asking.append(asyncio.create_task(gateway.post("completions", {**TEXT, "max_tokens": 8})))
            while len(gateway.buyer.orders) <= number or not gateway.buyer.orders[number].requests:
                await asyncio.sleep(0.01)
        first, second = gateway.buyer.orders
        assert gateway.accounts.reserved_msat("somebody") < 1_800_000 < 2 * first.terms.max_total_msat
        first.announced("aa" * 32, 500_000, 2)
        with pytest.raises(OverBudget, match="api_key"):
            second.announced("bb" * 32, 500_000, 2)
        assert gateway.accounts.reserved_msat("somebody") <= 1_800_000
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def test_a_budget_covers_every_job_of_a_generation_that_moves_on_and_on(tmp_path):
    """Each move pays for its text again, so what is set aside for a few jobs is not enough for many."""
    keys = [{"name": "somebody", "sha256": sha256_of(KEY), "budget_msat": 10_000_000}]
    async with opened(tmp_path, StandIn(hangs=True), keys=keys) as gateway:
        asking = asyncio.create_task(gateway.post("completions", {**TEXT, "max_tokens": 8}))
        while not gateway.buyer.orders or not gateway.buyer.orders[0].requests:
            await asyncio.sleep(0.01)
        (order,), reserved = gateway.buyer.orders, gateway.accounts.reserved_msat
        of_four = reserved("somebody")
        job_msat, dear_msat = of_four // 4, 64 * PRICE_MSAT + 1
        for jobs in (2, 3, 4):
            order.announced(f"{jobs:064x}", 64 * PRICE_MSAT, jobs)
            assert reserved("somebody") == of_four
        order.announced(f"{5:064x}", 64 * PRICE_MSAT, 5)
        assert reserved("somebody") == of_four + job_msat
        order.announced(f"{6:064x}", dear_msat, 6)
        six = reserved("somebody")
        assert six == 6 * dear_msat * job_msat // (64 * PRICE_MSAT)
        order.announced(f"{7:064x}", PRICE_MSAT, 7)  # those before it cost what they cost
        assert reserved("somebody") == six // 6 * 7
        other = gateway.accounts.reserve(KeyConfig.model_validate(keys[0]), 10_000_000)
        with pytest.raises(OverBudget, match="api_key"):
            order.announced(f"{8:064x}", PRICE_MSAT, 8)
        assert reserved("somebody") == six // 6 * 7 + other.msat == 10_000_000
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_any_model_is_sold_by_its_name_if_the_file_says_so(tmp_path):
    models = [{"name": "plain", "manifest": f"38840:{AUTHOR}:plain"}, {"name": "*", "max_tokens": 2}]
    keys = [{"name": "somebody", "sha256": sha256_of(KEY), "models": ["*"]}]
    async with opened(tmp_path, models=models, keys=keys) as gateway:
        async with gateway.client.get("models") as answer:
            listed = (await answer.json())["data"]
        assert [one["id"] for one in listed] == ["pet"]  # what is pinned; not what the key may not use
        status, said = await gateway.post("completions", {"model": "talker", "prompt": "x", "max_tokens": 2})
        assert (status, said["model"]) == (200, "talker")
        status, _, param = await gateway.refused("completions", {"model": "talker", "prompt": "x"})
        assert (status, param) == (400, "max_tokens")  # the terms of *
        assert await gateway.refused("completions", {"model": "plain", "prompt": "x"}) == NOBODYS
        for name in ("*", "nobodys", "x" * 600):
            assert await gateway.refused("completions", {"model": name, "prompt": "x", "max_tokens": 2}) == NOBODYS
        async with gateway.client.get("/metrics") as answer:
            text = await answer.text()
        assert 'nodewire_gateway_cost_msat_total{model="*"}' in text
        assert "talker" not in text
    async with opened(tmp_path) as gateway:
        assert await gateway.refused("completions", {"model": "pet", "prompt": "x"}) == NOBODYS


NOBODYS = (404, "model_not_found", "model")
