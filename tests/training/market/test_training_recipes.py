"""Every family in every way, over a market: what comes out is the bare loop's, byte for byte."""

from __future__ import annotations

import asyncio

import pytest
import torch
from transformers import AutoModel

from nodewire.cli.model import cut
from nodewire.errors import BadHash, NoProvider
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.protocol.job import feedback
from nodewire.store.blobs import Blobs
from nodewire.training.customer.market.coordinator_client import Coordinator
from nodewire.training.engine import bare_loop, state
from nodewire.training.engine.models import directory, initial_weights
from nodewire.training.protocol import round as rounds
from nodewire.training.protocol.recipe import Recipe
from nodewire.training.protocol.result import Progress
from nodewire.training.provider.shard_job import ShardRun
from nodewire.training.verify.recomputation import RoundRecomputation
from nodewire.training.verify.transcript import check
from tests.training import models, small_market
from tests.training.models import Given
from tests.training.small_market import Local, provider, train

torch.set_num_threads(1)

FAMILIES = ("linear", "mlp", "cnn", "decoder", "encoder")
AVERAGE = {"method": "average"}
DILOCO = {"method": "nesterov", "lr": "0.7", "momentum": "0.9"}


@pytest.fixture
async def market(tmp_path):
    async with small_market.opened(tmp_path) as running:
        yield running


def expected(given: Given, shards: int = 2) -> bytes:
    return state.pack(bare_loop.run(given.recipe, given.dataset, shards, start=given.tensors)[0])


@pytest.mark.parametrize(
    ("outer", "compression"),
    [(AVERAGE, "f32"), (DILOCO, "int8"), (DILOCO, "int4")],
    ids=["FedAvg f32", "DiLoCo int8", "DiLoCo int4"],
)
@pytest.mark.parametrize("name", models.MAKERS)
async def test_the_markets_weights_are_the_bare_loops(market, tmp_path, name, outer, compression):
    given = models.given(name, tmp_path / "files", outer=outer, compression={"method": compression})
    wanted = expected(given)
    assert wanted != expected_before(given)
    async with provider(market, "ada", families=FAMILIES), provider(market, "bea", families=FAMILIES):
        done, weights = await train(market, "dora", given.recipe, data=given.data, start=given.start)
    assert weights == wanted
    assert done.failures == ()


class Killed(Exception):
    """The customer's process ends here."""


def dies(state_, event, provider_):
    """A customer that dies after everything that happens, but for progress, which is forgotten."""
    if not isinstance(event, Progress):
        raise Killed


async def test_a_customer_of_adapters_that_keeps_dying_goes_on(market, tmp_path):
    given = models.given("bpe-decoder-lora", tmp_path / "files", outer=DILOCO, compression={"method": "int8"})
    deaths = 0
    async with provider(market, "ada", families=FAMILIES), provider(market, "bea", families=FAMILIES):
        while True:
            try:
                _, weights = await train(
                    market, "dora", given.recipe, data=given.data, start=given.start, on_change=dies
                )
                break
            except Killed:
                deaths += 1
        async with Pool([market.relay]) as pool:
            requests = await pool.fetch([Filter(kinds=frozenset({8841}))])
    assert deaths > 15
    assert weights == expected(given)
    # Frozen weights are sealed once for the whole training.
    assert len({rounds.parse(event).round.start for event in requests}) == 1


async def test_frozen_weights_are_fetched_and_fed_once_a_training(market, tmp_path, monkeypatch):
    given = models.given("bpe-decoder-lora", tmp_path / "files", rounds=3)
    fed = []
    feed = ShardRun._feed

    async def counted(self, worker, edge, path, key, sha256):
        fed.append((self.job.assigned.provider, edge))
        return await feed(self, worker, edge, path, key, sha256)

    monkeypatch.setattr(ShardRun, "_feed", counted)
    async with provider(market, "ada", families=FAMILIES) as ada, provider(market, "bea", families=FAMILIES) as bea:
        _, weights = await train(market, "dora", given.recipe, data=given.data, start=given.start)
        # Another training of the same model has sealed it anew.
        again = models.given("bpe-decoder-lora", tmp_path / "others", rounds=1, seed=6)
        _, others = await train(market, "emil", again.recipe, data=again.data, start=again.start)
    assert weights == expected(given) and others == expected(again)
    assert [fed.count((keys.public, "start")) for keys in (ada, bea)] == [2, 2]
    assert [fed.count((keys.public, "theta")) for keys in (ada, bea)] == [4, 4]


async def test_a_trainer_of_adapters_that_was_restarted_goes_on(market, tmp_path):
    given = models.given("encoder-lora", tmp_path / "files")
    died = asyncio.Event()
    async with provider(market, "bea", families=FAMILIES):
        async with provider(
            market, "ada", families=FAMILIES, published=lambda event: event.kind in (6840, 6841) and died.set()
        ):
            training = asyncio.create_task(train(market, "dora", given.recipe, data=given.data, start=given.start))
            await died.wait()
        async with provider(market, "ada", families=FAMILIES):
            done, weights = await training
    assert weights == expected(given)
    assert done.failures == ()


@pytest.mark.parametrize("name", ["byte-decoder", "bpe-decoder-lora", "encoder-lora"])
async def test_what_was_trained_is_a_folder_that_others_read_and_the_market_serves(market, tmp_path, name):
    given = models.given(name, tmp_path / "files")
    out = tmp_path / "trained"
    async with provider(market, "ada", families=FAMILIES), provider(market, "bea", families=FAMILIES):
        await train(market, "dora", given.recipe, data=given.data, start=given.start, model=out)
    theta, _ = bare_loop.run(given.recipe, given.dataset, 2, start=given.tensors)
    whole = directory.merged(given.recipe, theta, given.tensors)
    read = AutoModel.from_pretrained(out).state_dict()
    for tensor_name, tensor in whole.items():
        assert torch.equal(read[tensor_name.removeprefix("model.")], tensor), tensor_name
    # It can be trained on from there, and registered.
    again = directory.family_of(out)
    assert again.start == initial_weights.cited(whole)
    document = given.recipe.document() | {"family": again.document()}
    assert initial_weights.read(Recipe.from_document(document), out).tensors.keys() == whole.keys()
    pieces = tmp_path / "pieces"
    pieces.mkdir()
    made = cut.cut(out, cut.CutOptions(10**8, "trained", 1), pieces)
    assert made.manifest.name == "trained" and made.manifest.tasks


async def test_a_start_that_is_another_than_the_recipe_cites_is_not_trained(market, tmp_path):
    given = models.given("encoder-lora", tmp_path / "files")
    file = given.start / "model.safetensors"
    tensors = dict(given.tensors)
    tensors["embeddings.LayerNorm.bias"] = tensors["embeddings.LayerNorm.bias"] + 1
    file.write_bytes(state.pack(tensors))
    with pytest.raises(BadHash, match=r"family\.start: .*the recipe cites"):
        await train(market, "dora", given.recipe, data=given.data, start=given.start)


async def test_frozen_weights_that_are_others_than_sealed_are_not_trained_on(market, tmp_path, monkeypatch):
    """A customer's fault or malice: the trainer says so, and trains nothing."""
    given = models.given("encoder-lora", tmp_path / "files")
    other = {name: tensor + 1 for name, tensor in given.tensors.items()}

    async def another(self):
        return await self._seal([state.pack(other)])

    monkeypatch.setattr(Coordinator, "start", another)
    monkeypatch.setattr("nodewire.training.customer.market.shard_assignment.FIND_S", 1.0)
    async with provider(market, "ada", families=FAMILIES), provider(market, "bea", families=FAMILIES):
        with pytest.raises(NoProvider):
            await train(market, "dora", given.recipe, data=given.data, start=given.start)
        async with Pool([market.relay]) as pool:
            said = await pool.fetch([Filter(kinds=frozenset({7000, 6840}))])
    refused = [feedback.parse(event).text for event in said if event.tag("status") == "error"]
    assert refused and set(refused) == {"bad-hash"}
    assert not any(event.kind == 6840 for event in said)


@pytest.mark.parametrize("name", ["bpe-decoder-lora", "encoder-tuned"])
async def test_what_providers_carry_of_a_model_from_a_start_is_the_bare_loops(market, tmp_path, name):
    packing = {"method": "int4", "error_feedback": "1.0", "fragments": 2}
    given = models.given(name, tmp_path / "files", rounds=3, outer=DILOCO, compression=packing)
    async with provider(market, "ada", families=FAMILIES), provider(market, "bea", families=FAMILIES):
        done, weights = await train(market, "dora", given.recipe, data=given.data, start=given.start)
    assert weights == expected(given)
    assert done.failures == ()


@pytest.mark.parametrize("name", ["bpe-decoder-tuned", "encoder-lora"])
async def test_a_transcript_of_a_model_from_a_start_comes_out_again(market, tmp_path, name):
    given = models.given(name, tmp_path / "files", outer=DILOCO)
    async with provider(market, "ada", families=FAMILIES), provider(market, "bea", families=FAMILIES):
        await train(market, "dora", given.recipe, data=given.data, start=given.start)
    reading = check(market.transcript)
    program = tmp_path / "recipe"
    program.write_bytes(given.recipe.pack())
    async with Blobs([], market.folder / "dora" / "blobs") as blobs:
        again = RoundRecomputation(reading, Local(), blobs, data=given.data, start=given.start, segments="all")
        await again.run(program)
    assert reading.faults == []
    assert again.computed == 4


def expected_before(given: Given) -> bytes:
    return state.pack(bare_loop.run(given.recipe, given.dataset, 2, start=given.tensors, rounds=0)[0])
