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
        client.chat.completions.create(**CHAT, tools=[TOOL])  # this template knows none
    assert refused.value.param == "tools"
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
