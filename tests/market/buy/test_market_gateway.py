"""OpenAI's API in front of this market: what it tells is what a single process makes, and what it costs is paid."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import numpy as np
import pytest
import pytest_asyncio

from nodewire.chat.renderer import Renderer
from nodewire.gateway.keys import sha256_of
from nodewire.graph import reference as whole_encoder
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import parse_params
from nodewire.pay.accounts.ledger import Ledger
from nodewire.protocol.model.chat_template import ChatTemplate
from tests.market.market_process import STALLS
from tests.market.tiny_models import TEMPLATE

PROMPT = "the cat sat on the mat"
KEY, POOR = "sk-test-of-the-gateway", "sk-test-of-one-who-is-poor"
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def alone(market):
    """What a single process makes of a prompt: its text, and how many tokens the prompt is."""
    model = LocalDecoder(market.decoder_folder)

    def generate(prompt: str, max_tokens: int) -> tuple[str, int]:
        steps = model.steps(prompt, parse_params({"max_tokens": max_tokens}, model.positions))
        return "".join(text for _, text in steps), len(model.tokenizer.encode(prompt))

    return generate


@asynccontextmanager
async def running(market, name: str, budget_msat: int = 40_000) -> AsyncIterator[aiohttp.ClientSession]:
    """A gateway as a process, and a client of it."""
    folder = market.folder / name
    if not folder.exists():
        await market.customer_config(name)
        models = [("coder", market.decoder["address"]), ("minilm", market.encoder["address"])]
        lines = ['customer = "role.toml"', 'state = "gateway"', 'listen = "127.0.0.1:0"']
        lines += [f"[[models]]\nname = {json.dumps(n)}\nmanifest = {json.dumps(at)}" for n, at in models]
        lines += ['[[models]]\nname = "*"']
        lines += [f'[[keys]]\nname = "rich"\nsha256 = "{sha256_of(KEY)}"']
        lines += [f'[[keys]]\nname = "poor"\nsha256 = "{sha256_of(POOR)}"\nbudget_msat = {budget_msat}\nper_minute = 2']
        (folder / "gateway.toml").write_text("\n".join(lines) + "\n")
    market.spawn(name, "gateway", "--config", str(folder / "gateway.toml"))
    ready = await asyncio.to_thread(market.ready, name)
    headers = {"Authorization": f"Bearer {KEY}"}
    try:
        async with aiohttp.ClientSession(ready["url"] + "/", headers=headers) as client:
            yield client
    finally:
        await asyncio.to_thread(market.stop_one, name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(market) -> AsyncIterator[aiohttp.ClientSession]:
    async with running(market, "gate") as client:
        yield client


def account(market, name: str, key: str) -> tuple[int, int]:
    """What a key has spent, and what is set aside for it."""
    db = sqlite3.connect(market.folder / name / "gateway" / "gateway.db")
    spent = db.execute("SELECT coalesce(sum(spent_msat), 0) FROM keys WHERE name = ?", (key,)).fetchone()[0]
    reserved = db.execute("SELECT coalesce(sum(msat), 0) FROM reserved WHERE key = ?", (key,)).fetchone()[0]
    db.close()
    return spent, reserved


def paid_msat(market, name: str, requests: list[str]) -> int:
    """What jobs came to, by the customer's ledger."""
    ledger = Ledger(market.folder / name / "state" / "ledger.db")
    spent = [ledger.spent(job=request) for request in requests]
    ledger.close()
    return sum(one.paid_msat + one.fees_msat for one in spent)


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[dict]:
    async for line in answer.content:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line[6:])


@pytest.mark.asyncio(loop_scope="module")
async def test_models_are_listed_as_their_manifests_describe_them(market, gateway):
    async with gateway.get("models") as answer:
        listed = {one["id"]: one["nodewire"] for one in (await answer.json())["data"]}
    assert listed.keys() == {"coder", "minilm"}
    assert listed["coder"]["digest"] == market.decoder["digest"]
    assert (listed["coder"]["mode"], listed["coder"]["chat"]) == ("generate", True)
    assert (listed["minilm"]["mode"], listed["minilm"]["chat"]) == ("embed", False)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_model_that_the_file_does_not_name_is_found_by_its_name(market, gateway):
    for name in ("bert", market.encoder["address"]):
        async with gateway.post("embeddings", json={"model": name, "input": "the cat"}) as answer:
            said = await answer.json()
            assert (answer.status, said["model"]) == (200, name), said
    async with gateway.get("models/bert") as answer:
        assert (await answer.json())["nodewire"]["digest"] == market.encoder["digest"]
    async with gateway.post("embeddings", json={"model": "nobodys", "input": "the cat"}) as answer:
        said = await answer.json()
        assert (answer.status, said["error"]["code"], said["error"]["param"]) == (404, "model_not_found", "model")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_completion_is_the_single_process_and_costs_what_was_paid(market, gateway, alone):
    spent_before, _ = account(market, "gate", "rich")
    body = {"model": "coder", "prompt": PROMPT, "max_tokens": 20, **GREEDY}
    async with gateway.post("completions", json=body) as answer:
        said = await answer.json()
        assert answer.status == 200, said
    text, prompt_tokens = alone(PROMPT, 20)
    assert (said["choices"][0]["text"], said["choices"][0]["finish_reason"]) == (text, "length")
    usage = said["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt_tokens, 20)
    assert usage["cost_msat"] == paid_msat(market, "gate", usage["nodewire_requests"]) > 0
    assert account(market, "gate", "rich") == (spent_before + usage["cost_msat"], 0)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_chat_is_streamed_from_the_models_own_template(market, gateway, alone):
    said = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": PROMPT}]},
    ]
    renderer = Renderer()
    plain = [{"role": "system", "content": "be brief"}, {"role": "user", "content": PROMPT}]
    prompt = await renderer.render(ChatTemplate(template=TEMPLATE), plain)
    await renderer.close()
    text, prompt_tokens = alone(prompt, 12)
    body = {"model": "coder", "messages": said, "max_completion_tokens": 12, "stream": True, **GREEDY}
    async with gateway.post("chat/completions", json={**body, "stream_options": {"include_usage": True}}) as answer:
        assert answer.status == 200
        came = [event async for event in events(answer)]
    deltas = [one["choices"][0]["delta"] for one in came if one["choices"]]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content", "") for delta in deltas) == text
    assert [one["choices"][0]["finish_reason"] for one in came if one["choices"]][-1] == "length"
    usage = came[-1]["usage"]
    assert came[-1]["choices"] == [] and usage["cost_msat"] > 0
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (prompt_tokens, 12)


@pytest.mark.asyncio(loop_scope="module")
async def test_embeddings_are_the_single_process_in_numbers_and_in_base64(market, gateway):
    texts = ["the cat sat on the mat", "rain"]
    expected = whole_encoder.embed(market.encoder_folder, texts).numpy()
    for form in ("float", "base64"):
        async with gateway.post(
            "embeddings", json={"model": "minilm", "input": texts, "encoding_format": form}
        ) as answer:
            said = await answer.json()
            assert answer.status == 200, said
        rows = [one["embedding"] for one in said["data"]]
        if form == "base64":
            rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
        assert np.abs(np.array(rows, np.float32) - expected).max() <= 1e-5
        assert said["usage"]["prompt_tokens"] == 6 + 2 + 1 + 2 and said["usage"]["cost_msat"] > 0  # [CLS], [SEP]


@pytest.mark.asyncio(loop_scope="module")
async def test_requests_under_way_at_once_are_told_their_own_tokens_and_costs(market, gateway, alone):
    """One customer buys for all of them."""
    spent_before, _ = account(market, "gate", "rich")
    asked = [
        ("completions", {"model": "coder", "prompt": PROMPT, "max_tokens": 20, **GREEDY}, alone(PROMPT, 20)[1], 20),
        ("completions", {"model": "coder", "prompt": "rain", "max_tokens": 70, **GREEDY}, alone("rain", 70)[1], 70),
        ("embeddings", {"model": "minilm", "input": "rain"}, 1 + 2, 0),
        ("embeddings", {"model": "minilm", "input": [PROMPT, "rain"]}, 6 + 2 + 1 + 2, 0),
    ]

    async def ask(path, body):
        async with gateway.post(path, json=body) as answer:
            said = await answer.json()
            assert answer.status == 200, said
            return said["usage"]

    usage = await asyncio.gather(*(ask(path, body) for path, body, _, _ in asked))
    for (_, _, prompt, completion), one in zip(asked, usage, strict=True):
        assert (one["prompt_tokens"], one.get("completion_tokens", 0)) == (prompt, completion)
        assert one["cost_msat"] == paid_msat(market, "gate", one["nodewire_requests"]) > 0
    requests = [request for one in usage for request in one["nodewire_requests"]]
    assert len(set(requests)) == len(requests)
    total_msat = sum(one["cost_msat"] for one in usage)
    assert account(market, "gate", "rich") == (spent_before + total_msat, 0)


@pytest.mark.asyncio(loop_scope="module")
async def test_who_hangs_up_in_the_middle_stops_paying(market, gateway):
    """350 tokens would be seven chunks with the prompt's; after one token at most two are worked on."""
    spent_before, _ = account(market, "gate", "rich")
    body = {"model": "coder", "prompt": PROMPT, "max_tokens": 350, "stream": True, **GREEDY}
    async with gateway.post("completions", json=body) as answer:
        assert await anext(events(answer))
        answer.close()
    async with asyncio.timeout(300):
        while account(market, "gate", "rich")[1]:
            await asyncio.sleep(0.05)
    cut_msat = account(market, "gate", "rich")[0] - spent_before
    async with gateway.post("completions", json={**body, "stream": False}) as answer:
        whole_msat = (await answer.json())["usage"]["cost_msat"]
    assert 0 < cut_msat <= whole_msat * 4 / 7
    public = market.keys("gate").public
    for name in STALLS:
        ledger = market.ledger(name)
        assert ledger.balance_msat(public) == 0
        ledger.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_prompt_that_does_not_fit_is_the_clients_fault(gateway):
    body = {"model": "coder", "prompt": "zq" * 400, "max_tokens": 5, **GREEDY}
    async with gateway.post("completions", json=body) as answer:
        error = (await answer.json())["error"]
    assert (answer.status, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")


async def test_what_a_killed_gateway_had_bought_is_booked_when_it_is_back(market):
    body = {"model": "coder", "prompt": PROMPT, "max_tokens": 350, "stream": True, **GREEDY}
    async with running(market, "mortal-gate") as client, client.post("completions", json=body) as answer:
        coming = events(answer)
        for _ in range(70):  # into the third chunk
            assert await anext(coming)
        market.processes["mortal-gate"].kill()
    spent_msat, reserved_msat = account(market, "mortal-gate", "rich")
    assert spent_msat == 0 and reserved_msat > 0
    ledger = Ledger(market.folder / "mortal-gate" / "state" / "ledger.db")
    before = ledger.spent()
    ledger.close()
    async with running(market, "mortal-gate"):
        spent_msat, reserved_msat = account(market, "mortal-gate", "rich")
    assert reserved_msat == 0
    assert before.paid_msat <= spent_msat <= before.paid_msat + before.fees_msat + before.pending_msat + 1_000


async def test_budget_and_rate_of_a_key_outlive_a_restart(market):
    body = {"model": "coder", "prompt": PROMPT, "max_tokens": 350, **GREEDY}
    poor = {"Authorization": f"Bearer {POOR}"}
    async with running(market, "frugal") as client:
        async with client.post("completions", json=body, headers=poor) as answer:
            said = await answer.json()
        assert answer.status == 200, said
        assert said["choices"][0]["finish_reason"] == "length"
        assert said["usage"]["completion_tokens"] < 350  # the budget ended it
        spent_msat = said["usage"]["cost_msat"]
        assert spent_msat <= 40_000 + 1_000  # fees come on top
    async with running(market, "frugal") as client:
        assert account(market, "frugal", "poor") == (spent_msat, 0)
        async with client.post("completions", json=body, headers=poor) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (429, "insufficient_quota")
        async with client.post("completions", json=body, headers=poor) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (429, "rate_limit_exceeded")


async def test_one_key_does_not_buy_in_two_processes_and_still_settles(market, gateway):
    """A provider keeps one link for a key: the second process would be locked out, and would not be told why."""
    config = ["--config", str(market.config_of("gate"))]
    command = ["generate", "the cat", "--model", market.decoder["address"], "--max-tokens", "2", *config]
    second = await asyncio.to_thread(market.run, *command)
    said = b"is in use by process %d: stop that one, or give this one a key of its own" % market.processes["gate"].pid
    assert second.returncode and said in b" ".join((second.stdout + second.stderr).split())
    assert (await asyncio.to_thread(market.run, "wallet", "settle", *config)).returncode == 0
