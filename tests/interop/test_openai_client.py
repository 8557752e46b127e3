"""OpenAI's own Python client against the gateway, before a whole market: `make interop`."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time

import numpy as np
import pytest

openai = pytest.importorskip("openai", reason="part of the extra `interop`")

KEY, POOR = "sk-test-of-the-gateway", "sk-test-of-one-who-is-poor"
CHAT = {"model": "coder", "messages": [{"role": "user", "content": "the cat sat"}], "temperature": 0}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def gateway(market):
    """Where it is, as its ready line says; its state is in the folder `openai`."""
    from nodewire.gateway.keys import sha256_of

    asyncio.run(market.customer_config("openai"))
    models = [("coder", market.decoder["address"]), ("minilm", market.encoder["address"])]
    lines = ['customer = "role.toml"', 'state = "gateway"', 'listen = "127.0.0.1:0"']
    lines += [f"[[models]]\nname = {json.dumps(n)}\nmanifest = {json.dumps(at)}" for n, at in models]
    lines += [f'[[keys]]\nname = "rich"\nsha256 = "{sha256_of(KEY)}"']
    lines += [f'[[keys]]\nname = "poor"\nsha256 = "{sha256_of(POOR)}"\nbudget_msat = 1']
    (market.folder / "openai" / "gateway.toml").write_text("\n".join(lines) + "\n")
    market.spawn("openai", "gateway", "--config", str(market.folder / "openai" / "gateway.toml"))
    yield market.ready("openai")["url"]
    market.stop_one("openai")


@pytest.fixture
def client(gateway):
    with openai.OpenAI(base_url=gateway, api_key=KEY, max_retries=0, timeout=60) as made:
        yield made


def account(market) -> tuple[int, int]:
    """What the rich key has spent, and how many of its requests are not settled yet."""
    db = sqlite3.connect(market.folder / "openai" / "gateway" / "gateway.db")
    spent = db.execute("SELECT coalesce(sum(spent_msat), 0) FROM keys WHERE name = 'rich'").fetchone()[0]
    reserved = db.execute("SELECT count(*) FROM reserved").fetchone()[0]
    db.close()
    return spent, reserved


def test_models(client, market):
    listed = {model.id: model for model in client.models.list()}
    assert listed.keys() == {"coder", "minilm"}
    assert client.models.retrieve("coder").owned_by == market.decoder["address"].split(":")[1]


def test_a_chat_whole_and_streamed_is_the_same_and_says_what_it_cost(client):
    whole = client.chat.completions.create(**CHAT, max_completion_tokens=20, user="somebody")
    assert whole.choices[0].finish_reason == "length" and whole.choices[0].message.role == "assistant"
    assert whole.usage.completion_tokens == 20 and whole.usage.prompt_tokens > 0
    assert whole.usage.cost_msat > 0 and whole.usage.nodewire_requests
    text, usage = "", None
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(**CHAT, max_tokens=20, stream=True, stream_options=options):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, 20)
    assert usage.cost_msat > 0


def test_the_clients_own_accumulating_stream(client):
    with client.chat.completions.stream(**CHAT, max_tokens=8) as stream:
        for _ in stream:
            pass
        with pytest.raises(openai.LengthFinishReasonError) as cut:  # it parses what is whole
            stream.get_final_completion()
    (choice,) = cut.value.completion.choices
    assert choice.finish_reason == "length" and choice.message.content


def test_a_completion(client):
    made = client.completions.create(model="coder", prompt="the cat", max_tokens=6, temperature=0)
    streamed = client.completions.create(model="coder", prompt="the cat", max_tokens=6, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == made.choices[0].text
    seeded = [
        client.completions.create(model="coder", prompt="the cat", max_tokens=6, temperature=1.5, top_p=0.9, seed=7)
        for _ in range(2)
    ]
    assert seeded[0].choices[0].text == seeded[1].choices[0].text


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "kind": {"enum": ["cat", "dog"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}}


def test_a_text_that_is_a_schemas_whole_and_streamed(client):
    asked = {**CHAT, "response_format": FORMAT, "max_tokens": 300, "temperature": 1.5, "seed": 4}
    whole = client.chat.completions.create(**asked)
    found = json.loads(whole.choices[0].message.content)
    assert list(found) == ["name", "kind"] and len(found["name"]) <= 6 and found["kind"] in ("cat", "dog")
    assert whole.choices[0].finish_reason == "stop" and whole.usage.cost_msat > 0
    with client.chat.completions.stream(**asked) as stream:  # which parses what is whole
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content
    made = client.chat.completions.create(**CHAT, response_format={"type": "json_object"}, max_tokens=60)
    assert made.choices[0].message.content.startswith("{")
    with pytest.raises(openai.BadRequestError) as refused:
        remote = {"name": "remote", "schema": {"$ref": "http://example.com/x"}}
        client.chat.completions.create(**CHAT, response_format={"type": "json_schema", "json_schema": remote})
    assert refused.value.param == "response_format"


def test_log_probabilities_of_a_chat_and_of_a_completion(client):
    asked = {**CHAT, "max_tokens": 8, "logprobs": True, "top_logprobs": 3}
    told = client.chat.completions.create(**asked).choices[0].logprobs.content
    assert len(told) == 8 and all(len(one.top_logprobs) == 3 for one in told)
    for one in told:  # greedy: the token is the likeliest
        assert one.logprob == one.top_logprobs[0].logprob <= 0 and one.token == one.top_logprobs[0].token
        assert one.bytes is None or bytes(one.bytes).decode() == one.token
    streamed = []
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            streamed += choice.logprobs.content if choice.logprobs else []
    assert [one.token for one in streamed] == [one.token for one in told]
    assert all(abs(one.logprob - other.logprob) < 1e-3 for one, other in zip(streamed, told, strict=True))
    legacy = client.completions.create(model="coder", prompt="the cat", max_tokens=6, temperature=0, logprobs=2)
    said = legacy.choices[0].logprobs
    assert len(said.tokens) == len(said.token_logprobs) == len(said.text_offset) == 6
    assert all(one <= 0 for one in said.token_logprobs) and said.text_offset[0] == 0
    assert client.chat.completions.create(**CHAT, max_tokens=2).choices[0].logprobs is None


def test_a_bias_decides_and_one_for_no_token_is_its_fields_fault(client):
    made = client.completions.create(
        model="coder", prompt="the cat", max_tokens=3, temperature=0, logit_bias={"7": 100}
    )
    again = client.completions.create(
        model="coder", prompt="the cat", max_tokens=3, temperature=0, logit_bias={"7": 100}, logprobs=0
    )
    assert made.choices[0].text == again.choices[0].text and len(set(again.choices[0].logprobs.tokens)) == 1
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model="coder", prompt="the cat", stream=stream, logit_bias={"100000": 1})
        assert refused.value.param == "logit_bias"


def test_tools_and_what_they_answered_go_into_the_models_own_template(client):
    plain = client.chat.completions.create(**CHAT, max_tokens=4)
    asked = {**CHAT, "max_tokens": 4, "tools": [TOOL], "tool_choice": "auto"}
    told = client.chat.completions.create(**asked)
    assert told.usage.prompt_tokens > plain.usage.prompt_tokens
    assert told.choices[0].message.tool_calls is None and told.choices[0].finish_reason == "length"
    with client.chat.completions.create(**asked, stream=True) as stream:
        text = "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)
    assert text == told.choices[0].message.content
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    done = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "a mat"},
    ]
    more = client.chat.completions.create(**{**asked, "messages": [*CHAT["messages"], *done]})
    assert more.usage.prompt_tokens > told.usage.prompt_tokens
    none = client.chat.completions.create(**{**asked, "tool_choice": "none"})
    assert none.usage.prompt_tokens == plain.usage.prompt_tokens


def test_of_a_prompt_that_begins_like_an_earlier_one_what_was_found_is_told_and_costs_less(client):
    asked = {"model": "coder", "prompt": "the cat sat on the mat and " * 9, "max_tokens": 2, "temperature": 0}
    first, again = (client.completions.create(**asked) for _ in range(2))
    assert first.choices[0].text == again.choices[0].text
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    found = again.usage.prompt_tokens_details.cached_tokens
    assert found and found % 64 == 0 and found < again.usage.prompt_tokens == first.usage.prompt_tokens
    assert 0 < again.usage.cost_msat < first.usage.cost_msat


def test_embeddings_as_the_client_asks_for_them_and_as_numbers(client):
    made = client.embeddings.create(model="minilm", input=["a cat", "a dog", "rain"])  # in base64
    plain = client.embeddings.create(model="minilm", input=["a cat", "a dog", "rain"], encoding_format="float")
    rows = [np.array([one.embedding for one in said.data], np.float32) for said in (made, plain)]
    assert rows[0].shape == (3, 32) and np.array_equal(*rows)
    assert made.usage.prompt_tokens == made.usage.total_tokens > 0


def test_errors_are_the_clients_own_classes(client, gateway):
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(**{**CHAT, "model": "gpt-4"})
    assert refused.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**CHAT, n=2)
    assert refused.value.param == "n"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{**CHAT, "temperature": 9})
    assert refused.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**CHAT, tools=[TOOL], tool_choice="required")  # nobody can promise a call
    assert refused.value.param == "tool_choice"
    for field, value in (
        ("temperature", -1),
        ("top_p", 0),
        ("presence_penalty", 9),
        ("max_tokens", 0),
        ("seed", 2**64),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**{**CHAT, field: value})
        assert refused.value.param == field
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="coder", prompt="zq" * 500)
    assert refused.value.code == "context_length_exceeded"
    with (
        openai.OpenAI(base_url=gateway, api_key="sk-wrong", max_retries=0) as wrong,
        pytest.raises(openai.AuthenticationError),
    ):
        wrong.models.list()
    with openai.OpenAI(base_url=gateway, api_key=POOR, max_retries=0) as poor:
        with pytest.raises(openai.RateLimitError) as refused:
            poor.chat.completions.create(**CHAT)
        assert refused.value.code == "insufficient_quota"


def test_a_stream_that_is_closed_stops_paying(client, market):
    """Of some 330 tokens, five or more chunks, after the first token at most two are worked on."""
    before, _ = account(market)
    with client.chat.completions.create(**CHAT, max_tokens=330, stream=True) as stream:
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                break
    until = time.monotonic() + 20
    while account(market)[1]:
        assert time.monotonic() < until
        time.sleep(0.05)
    cut_msat = account(market)[0] - before
    whole = client.chat.completions.create(**CHAT, max_tokens=330)
    assert 0 < cut_msat <= whole.usage.cost_msat * 4 / 6


async def test_many_at_once_and_one_that_is_cancelled(gateway):
    async with openai.AsyncOpenAI(base_url=gateway, api_key=KEY, max_retries=2, timeout=60) as client:
        asked = [client.chat.completions.create(**CHAT, max_tokens=8) for _ in range(3)]
        left = asyncio.create_task(client.chat.completions.create(**CHAT, max_tokens=300))
        await asyncio.sleep(0)
        left.cancel()
        done = await asyncio.gather(*asked)
        assert len({one.choices[0].message.content for one in done}) == 1
