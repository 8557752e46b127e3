"""FEDSTR's layout: two chained rounds bought by a customer that knows nothing else, and all that is refused."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nodewire.errors import PaymentFailed
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips.nip01 import Filter
from nodewire.training.customer.policy.provider_selection import trainers
from nodewire.training.engine import bare_loop, data
from nodewire.training.engine.families import initial
from nodewire.training.fedstr import job as run
from nodewire.training.fedstr import service
from nodewire.training.protocol.recipe import Compression, Recipe
from tests.kinds.digits import RECIPE, dataset
from tests.training import small_market
from tests.training.fedstr_customer import customer, hosting, inputs, params, save, sealed, stepped, why
from tests.training.small_market import LEAST_MSAT, OPENING_MSAT, Conduct, provider

torch.set_num_threads(1)
TWO_ROUNDS = RECIPE.model_copy(update={"rounds": 2})
SHARD = data.split(dataset(), 1, TWO_ROUNDS).shards[0].packed
THETA = {name: tensor.numpy() for name, tensor in initial(TWO_ROUNDS).items()}
IN_SATS_MSAT = 2_000 + 6_000
"""What a round is paid with: a deposit of 1.751 sat, a balance of 5.25 sat, and what is over."""


@pytest.fixture
async def market(tmp_path):
    async with small_market.opened(tmp_path) as running:
        yield running


@pytest.fixture
async def host():
    async with hosting() as running:
        yield running


@asynccontextmanager
async def dora(market):
    async with customer(market.relay, await market.wallet("dora", OPENING_MSAT), Keys(b"\x0d" * 32)) as one:
        yield one


def round_of(host, *, theta=THETA, number=0, recipe=TWO_ROUNDS, run="fedavg", shard=SHARD, **more):
    weights = save(theta)
    return [
        *inputs("data", host.put("shard", shard), shard),
        *inputs("state", host.put(f"theta{number}", weights), weights),
        *params(task="train", run=run, recipe=json.dumps(recipe.document()), round=number, **more),
    ]


async def test_a_plain_customer_buys_two_chained_rounds_and_gets_what_the_bare_loop_makes(market, host):
    async with provider(market, "ada", fedstr=True) as ada, dora(market) as one:
        (ad,) = await one.pool.fetch([Filter(kinds=frozenset({31990}), tags={"k": frozenset({"8000"})})])
        assert list(await trainers(one.pool)) == [ada.public]  # to our own customers it is the trainer that it was
        assert ad.pubkey == ada.public and json.loads(ad.content)["least_msat"] == LEAST_MSAT
        first, result = await one.buy(ada.public, round_of(host))
        assert json.loads(result.tag("request"))["id"] == first.id
        assert result.values("i") == first.values("i")
        theta = stepped(THETA, await one.update(result))
        weights = save(theta)
        chained = [
            ["i", result.id, "job", market.relay],
            *inputs("state", host.put("theta1", weights), weights),
            *params(task="train", run="fedavg", recipe=json.dumps(TWO_ROUNDS.document()), round=1),
        ]
        second, result = await one.buy(ada.public, chained)
        theta = stepped(theta, await one.update(result))
        assert one.said(second)[0] == "payment-required" and "processing" in one.said(second)
    expected, _ = bare_loop.run(TWO_ROUNDS, dataset(), 1)
    assert same(theta, expected)
    assert one.paid_msat == 2 * IN_SATS_MSAT
    assert await market.balance_msat("ada") == 2 * IN_SATS_MSAT


async def test_an_encrypted_request_of_plain_parameters_and_sealed_files_is_the_recipe_that_they_say(market, host):
    family = {"name": "mlp", "inputs": 64, "hidden": (32,), "classes": 10}
    recipe = Recipe.from_document({**RECIPE.document(), "name": "fedstr", "rounds": 1, "family": family})
    theta = {name: tensor.numpy() for name, tensor in initial(recipe).items()}
    key, other, weights = secrets.token_hex(32), secrets.token_hex(32), save(theta)
    tags = [
        *inputs("data", host.put("a", sealed(SHARD, key)), SHARD, key),
        *inputs("state", host.put("b", sealed(weights, other)), weights, other),
        *params(task="train", run="fedavg", model="mlp", inputs=64, hidden="32", classes=10, optimizer="sgd"),
        *params(lr="0.1", momentum="0.9", steps=20, batch=32, rounds=1, seed=7),
    ]
    async with provider(market, "ada", fedstr=True) as ada, dora(market) as one:
        request, result = await one.buy(ada.public, tags, encrypted=True)
        theta = stepped(theta, await one.update(result))
        everything = await one.pool.fetch([Filter(kinds=frozenset({8000, 7000, 6000}))])
    expected, _ = bare_loop.run(recipe, dataset(), 1)
    assert same(theta, expected)
    assert request.values("i") == result.values("i") == []
    said = "".join(event.to_json() for event in everything)
    assert all(secret not in said for secret in (key, other, host.base, hashlib.sha256(SHARD).hexdigest(), "momentum"))


async def test_diloco_is_the_same_round_and_its_outer_step_the_customers(market, host):
    document = {**RECIPE.document(), "name": "fedstr", "rounds": 2}
    recipe = Recipe.from_document(document | {"outer": {"method": "nesterov", "lr": "0.7", "momentum": "0.9"}})
    theta = {name: tensor.numpy() for name, tensor in initial(recipe).items()}
    momenta = {name: np.zeros_like(array) for name, array in theta.items()}
    plain = params(task="train", run="diloco", model="mlp", inputs=64, hidden="32", classes=10, steps=20, batch=32)
    plain += params(lr="0.1", momentum="0.9", rounds=2, seed=7)
    async with provider(market, "ada", fedstr=True) as ada, dora(market) as one:
        for number in range(2):
            weights = save(theta)
            tags = [
                *inputs("data", host.put("shard", SHARD), SHARD),
                *inputs("state", host.put(f"theta{number}", weights), weights),
                *plain,
                *params(round=number),
            ]
            _, result = await one.buy(ada.public, tags)
            for name, delta in (await one.update(result)).items():
                g = delta.astype(np.float64)
                v = 0.9 * momenta[name].astype(np.float64) + g
                theta[name] = (theta[name].astype(np.float64) + 0.7 * (0.9 * v + g)).astype(np.float32)
                momenta[name] = v.astype(np.float32)
    assert same(theta, bare_loop.run(recipe, dataset(), 1)[0])


async def test_who_does_not_pay_the_deposit_gets_nothing_trained(market, host, monkeypatch):
    monkeypatch.setattr(run, "SETTLING_S", 0.1)
    edges: list[str] = []
    async with (
        provider(market, "ada", Conduct(alter=noting(edges)), fedstr=True, patience_s=3.0) as ada,
        dora(market) as one,
    ):
        request = await one.ask(ada.public, round_of(host))
        asked = await one.answer(request, "payment-required")
        assert next(tag for tag in asked.tags if tag[0] == "amount")[1] == "2000"
        assert why(await one.answer(request, "error")) == "payment-required"
        assert "shard" in edges and "train" not in edges
        with pytest.raises(PaymentFailed):  # nobody can pay for what will not come
            await one.pay(asked)
        await one.buy(ada.public, round_of(host))  # which was no debt
    assert await market.balance_msat("ada") == IN_SATS_MSAT


async def test_who_does_not_pay_the_balance_is_refused_until_it_has(market, host, monkeypatch):
    edges: list[str] = []
    async with provider(market, "ada", Conduct(alter=noting(edges)), fedstr=True) as ada, dora(market) as one:
        request = await one.ask(ada.public, round_of(host, deadline=60))
        await one.pay(await one.answer(request, "payment-required"))
        result = await one.answer(request, "result")
        later = SimpleNamespace(time=lambda: time.time() + 60 + 20 + 3)  # its patience is over, too
        monkeypatch.setattr(service, "time", later)
        trained = edges.count("train")
        refused = await one.ask(ada.public, round_of(host), created_at=int(later.time()))
        assert why(await one.answer(refused, "error")) == "payment-required"
        assert edges.count("train") == trained
        await one.pay(result)
        await market.booked("ada", LEAST_MSAT)
        await one.buy(ada.public, round_of(host), created_at=int(later.time()))
    assert await market.balance_msat("ada") == 2 * IN_SATS_MSAT


async def test_results_that_wait_for_their_balance_are_not_without_end(market, host):
    async with provider(market, "ada", fedstr=True) as ada, dora(market) as one:
        results = []
        for number in range(2):
            request = await one.ask(ada.public, round_of(host, number=number))
            await one.pay(await one.answer(request, "payment-required"))
            results.append(await one.answer(request, "result"))
        third = round_of(host, number=1, index=1)
        assert why(await one.answer(await one.ask(ada.public, third), "error")) == "payment-required"
        for result in results:
            await one.pay(result)
        await market.booked("ada", 2 * LEAST_MSAT)
        await one.buy(ada.public, round_of(host, number=1, index=2))
    assert await market.balance_msat("ada") == 3 * IN_SATS_MSAT - 2_000  # what was ahead has paid the third deposit


NAN = THETA | {"layers.0.bias": np.full(32, np.nan, np.float32)}
NO_FILE = (2).to_bytes(8, "little") + b"[]"
SMALL = save({"layers.0.bias": THETA["layers.0.bias"]})
CNN = Recipe.from_document(
    RECIPE.document()
    | {"family": {"name": "cnn", "channels": 1, "height": 8, "width": 8, "filters": (4,), "classes": 10}}
)
CARRYING = RECIPE.model_copy(update={"compression": Compression(method="int8", error_feedback="1.0")})
WIDE = RECIPE.model_copy(update={"family": RECIPE.family.model_copy(update={"hidden": (2**20,)})})


def noting(edges):
    """Of a worker that does what it should."""

    def note(edge, frames):
        edges.append(edge)
        return frames

    return note


def same(theta, expected):
    return {name: array.tobytes() for name, array in theta.items()} == {
        name: tensor.numpy().tobytes() for name, tensor in expected.items()
    }


def other(host, marker, url, plain, key=None):
    """A request with another input."""
    return [*(tag for tag in round_of(host) if marker not in tag[2:]), *inputs(marker, url, plain, key)]


def announced(host, size):
    """A request whose data is said to be so large."""
    return [[*tag[:3], str(size)] if tag[0] == "x" and tag[2] == "data" else tag for tag in round_of(host)]


def changed(host, name, value):
    """A request with another parameter."""
    return [["param", name, value] if tag[:2] == ["param", name] else tag for tag in round_of(host)]


def chained(host, job):
    return [*(tag for tag in round_of(host) if "data" not in tag[2:]), ["i", job, "job"]]


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda host: other(host, "data", host.base + "/missing", SHARD), "not-found"),
        (lambda host: other(host, "data", host.put("d", SHARD[:-1] + b"\x01"), SHARD), "bad-hash"),
        (lambda host: other(host, "data", host.put("d", SHARD + b"\x00"), SHARD), "too-large"),
        (lambda host: other(host, "data", host.put("d", SHARD[:-1]), SHARD), "bad-hash"),
        (lambda host: other(host, "data", host.put("d", b"\xff" * 999), b"\xff" * 999), "too-large"),
        (lambda host: other(host, "data", host.put("d", NO_FILE), NO_FILE), "bad-data"),
        (lambda host: other(host, "data", host.put("d", save(THETA)), save(THETA)), "bad-data"),
        (lambda host: other(host, "data", host.put("d", SHARD), SHARD, "ab" * 32), "bad-hash"),
        (lambda host: other(host, "data", "http://1.1.1.1/shard", SHARD), "not-allowed"),
        (lambda host: other(host, "data", host.base + "/to-public", SHARD), "not-allowed"),
        (lambda host: other(host, "data", host.base + "/round-and-round", SHARD), "not-allowed"),
        (lambda host: other(host, "data", "file:///etc/passwd", SHARD), "bad-input"),
        (lambda host: other(host, "state", host.put("s", save(NAN)), save(NAN)), "bad-data"),
        (lambda host: other(host, "state", host.put("s", SMALL), SMALL), "bad-data"),
        (lambda host: other(host, "state", host.put("s", SHARD), SHARD), "too-large"),
        (lambda host: announced(host, 2 * 10**8), "too-large"),
        (lambda host: [tag for tag in round_of(host) if tag[0] != "x"], "bad-tag"),
        (lambda host: [tag for tag in round_of(host) if tag[0] != "i" or tag[4] != "state"], "bad-tag"),
        (lambda host: [*chained(host, "00" * 32)[:-1], ["i", "00" * 32, "event", "", "data"]], "unsupported"),
        (lambda host: changed(host, "recipe", json.dumps(RECIPE.document() | {"steps": 10**9})), "bad-recipe"),
        (lambda host: changed(host, "recipe", json.dumps(CNN.document())), "not-allowed"),
        (lambda host: changed(host, "recipe", json.dumps(CARRYING.document())), "unsupported"),
        (lambda host: changed(host, "recipe", json.dumps(WIDE.document())), "over-memory"),
        (lambda host: changed(host, "run", "gossip"), "unsupported"),
        (lambda host: changed(host, "run", "diloco"), "bad-recipe"),
        (lambda host: changed(host, "round", "2"), "not-allowed"),
        (lambda host: [*round_of(host), ["bid", str(LEAST_MSAT - 1)]], "payment-required"),
        (lambda host: [*round_of(host), ["alt", "x" * 25_000]], "too-large"),
        (lambda host: chained(host, "00" * 32), "not-found"),
    ],
)
async def test_what_cannot_be_served_is_refused_before_anybody_pays(market, host, make, code):
    host.redirects = {"to-public": "http://1.1.1.1/shard", "round-and-round": "/round-and-round"}
    edges: list[str] = []
    async with (
        provider(market, "ada", Conduct(alter=noting(edges)), fedstr=True, memory_bytes=10**9) as ada,
        dora(market) as one,
    ):
        request = await one.ask(ada.public, make(host))
        said = await one.answer(request, "error", "payment-required")
        assert (one.said(request), why(said)) == (["error"], code)
        assert "train" not in edges
        await one.buy(ada.public, round_of(host))  # and its worker is free again
    assert await market.balance_msat("ada") == IN_SATS_MSAT


async def test_a_private_address_is_not_dialled_without_leave(market, host):
    async with provider(market, "ada", fedstr=True, allow_private=False) as ada, dora(market) as one:
        for tags in (
            round_of(host),
            other(host, "data", host.base.replace("http:", "https:") + "/shard", SHARD),
            other(host, "data", host.base.replace("127.0.0.1", "localhost").replace("http:", "https:") + "/a", SHARD),
        ):
            assert why(await one.answer(await one.ask(ada.public, tags), "error")) == "not-allowed"
    assert host.asked == []


async def test_of_others_events_of_these_kinds_nothing_is_said(market, host):
    async with provider(market, "ada", fedstr=True) as ada, dora(market) as one:
        stranger = Keys(b"\x51" * 32)
        tags = [["-"], ["p", ada.public]]  # NIP-43: a relay says that it has a new member
        added = events.sign(one.keys, 8000, created_at=int(time.time()), tags=tags)
        tags = [["p", ada.public], ["encrypted"]]
        sealed_ = events.sign(one.keys, 8000, created_at=int(time.time()), content="A" * 200, tags=tags)
        tags = [["p", stranger.public], *round_of(host)]
        others = events.sign(one.keys, 8000, created_at=int(time.time()), tags=tags)
        for event in (added, sealed_, others):
            await one.pool.publish(event)
        await one.buy(ada.public, round_of(host))
        assert [one.said(event) for event in (added, sealed_, others)] == [[], [], []]


async def test_what_is_free_is_trained_at_once_and_asks_for_nothing(market, host):
    async with provider(market, "ada", fedstr=True, least_msat=0, msat_per_pflop=0) as ada, dora(market) as one:
        request = await one.ask(ada.public, round_of(host))
        result = await one.answer(request, "result", "error")
        assert [tag for event in one.heard for tag in event.tags if tag[0] == "amount"] == [("amount", "0")]
        theta = stepped(THETA, await one.update(result))
        assert "payment-required" not in one.said(request)
    assert same(theta, bare_loop.run(TWO_ROUNDS, dataset(), 1, rounds=1)[0])


async def test_who_finds_all_workers_training_hears_it(market, host):
    async with provider(market, "ada", fedstr=True) as ada, dora(market) as one:
        first = await one.ask(ada.public, round_of(host))
        asked = await one.answer(first, "payment-required")
        second = await one.ask(ada.public, round_of(host, index=1))
        assert why(await one.answer(second, "busy")) == "busy"
        await one.pay(asked)
        await one.pay(await one.answer(first, "result"))
    assert await market.balance_msat("ada") == IN_SATS_MSAT


async def test_work_is_asked_for_and_dates_are_of_today(market, host):
    async with provider(market, "ada", fedstr=True, pow_bits=6) as ada, dora(market) as one:
        idle = await one.ask(ada.public, round_of(host))
        late = await one.ask(ada.public, round_of(host, deadline=5), created_at=int(time.time()) - 20, pow_bits=6)
        early = await one.ask(ada.public, round_of(host), created_at=int(time.time()) + 300, pow_bits=6)
        codes = [why(await one.answer(request, "error")) for request in (idle, late, early)]
        assert codes == ["bad-tag", "not-allowed", "not-allowed"]
        await one.buy(ada.public, round_of(host), pow_bits=6)


async def test_switched_off_it_is_silent(market, host):
    async with provider(market, "ada") as ada, dora(market) as one:
        request = await one.ask(ada.public, round_of(host))
        await asyncio.sleep(1.0)
        assert one.said(request) == []
        assert not await one.pool.fetch([Filter(kinds=frozenset({31990}), tags={"k": frozenset({"8000"})})])
    assert host.asked == []


async def test_a_provider_that_dies_goes_on_is_paid_once_and_serves_nothing_twice(market, host, monkeypatch):
    monkeypatch.setattr(service, "AGAIN_S", 0.2)
    training = asyncio.Event()

    async def hold(edge):
        if edge == "train":
            training.set()
            await asyncio.Event().wait()

    edges: list[str] = []
    async with dora(market) as one:
        async with provider(market, "ada", Conduct(hold=hold), fedstr=True) as ada:
            request = await one.ask(ada.public, round_of(host))
            await one.pay(await one.answer(request, "payment-required"))
            await training.wait()
        host.lost = {"shard"}  # nobody's fault, and over soon
        async with provider(market, "ada", Conduct(alter=noting(edges)), fedstr=True):
            await asyncio.sleep(0.5)
            assert "error" not in one.said(request)
            host.lost = set()
            result = await one.answer(request, "result")
            await one.pay(result)
            await market.booked("ada", LEAST_MSAT)
        said, trained = one.said(request), edges.count("train")
        assert (said.count("payment-required"), said.count("result")) == (1, 1)
        async with provider(
            market, "ada", Conduct(alter=noting(edges)), fedstr=True
        ):  # the relay sends the request again
            await one.pool.publish(request)
            await asyncio.sleep(1.0)
        assert (one.said(request), edges.count("train")) == (said, trained)
        expected, _ = bare_loop.run(TWO_ROUNDS, dataset(), 1, rounds=1)
        assert same(stepped(THETA, await one.update(result)), expected)
    assert await market.balance_msat("ada") == IN_SATS_MSAT


async def test_a_provider_that_dies_after_everything_that_it_says_asks_and_is_paid_for_each_thing_once(market, host):
    died = asyncio.Event()
    told: set[tuple[object, ...]] = set()

    def dies(event):
        if (what := (event.kind, event.tag("status"))) not in told:
            told.add(what)
            died.set()

    async def ada():
        while True:
            died.clear()
            async with provider(market, "ada", fedstr=True, published=dies):
                await died.wait()

    async with dora(market) as one:
        (market.folder / "ada").mkdir()
        public = Keys.from_file(market.folder / "ada" / "key").public
        keeps_dying = asyncio.create_task(ada())
        request = await one.ask(public, round_of(host))
        await one.pay(await one.answer(request, "payment-required"))
        result = await one.answer(request, "result")
        await one.pay(result)
        theta = stepped(THETA, await one.update(result))
        await asyncio.sleep(1.0)
        keeps_dying.cancel()
        await asyncio.gather(keeps_dying, return_exceptions=True)
        asked = {tag for event in one.heard for tag in event.tags if tag[0] == "amount"}
    assert told >= {(7000, "payment-required"), (7000, "processing"), (6000, None)}
    assert len([tag for tag in asked if len(tag) > 2]) == 2  # the same invoices, however often
    assert same(theta, bare_loop.run(TWO_ROUNDS, dataset(), 1, rounds=1)[0])
    assert await market.balance_msat("ada") == IN_SATS_MSAT == one.paid_msat
