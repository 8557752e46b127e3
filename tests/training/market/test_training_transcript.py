"""Transcripts: an honest one holds, opened or not; each alteration is named, though its customer signs it again."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
import torch
from typer.testing import CliRunner

from nodewire.cli import app
from nodewire.errors import BadData, BadSignature, TooLarge
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.store.blobs import Blobs
from nodewire.training.customer.market.context import TrainingOrder
from nodewire.training.engine import state
from nodewire.training.protocol import audit, round_close
from nodewire.training.protocol.recipe import Recipe
from nodewire.training.protocol.transcript import Transcript
from nodewire.training.verify.recomputation import RoundRecomputation
from nodewire.training.verify.transcript import Fault, check
from tests.kinds.digits import RECIPE, dataset
from tests.training import small_market
from tests.training.small_market import BUDGET_MSAT, Local, provider, train

torch.set_num_threads(1)
RECIPE_AUDITED = RECIPE.model_copy(update={"audit": RECIPE.audit.model_copy(update={"segment": 4, "fraction": "0.4"})})


class Stage:
    """A training that is over: its transcript, the customer's keys, the blobs and the data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys, self.transcript = asyncio.run(self._made())

    async def _made(self) -> tuple[Keys, Transcript]:
        async with small_market.opened(self.folder) as market:
            async with provider(market, "ada"), provider(market, "bea"):
                await train(market, "dora", RECIPE_AUDITED)
            (self.folder / "plain").mkdir()
            return Keys.from_file(self.folder / "dora" / "key"), market.transcript

    async def recompute(self, transcript: Transcript, *, data: bool = False, segments="drawn") -> list[Fault]:
        reading = check(transcript)
        assert reading.faults == []
        program = self.folder / "plain" / "recipe"
        program.write_bytes(Recipe.from_document(transcript.recipe).pack())
        async with Blobs([], self.folder / "dora" / "blobs") as blobs:
            one = RoundRecomputation(
                reading, Local(), blobs, data=self.folder / "data" if data else None, segments=segments
            )
            await one.run(program)
        assert reading.faults or one.computed == (0 if segments == "none" else 6)
        return reading.faults

    def altered(self, **changes) -> Transcript:
        return self.transcript.model_copy(update=changes).signed(self.keys)


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    return Stage(tmp_path_factory.mktemp("stage"))


def test_an_honest_transcript_holds_opened_or_not_and_is_read_as_it_was_written(stage):
    for transcript in (stage.transcript, stage.transcript.closed()):
        reading = check(Transcript.parse(transcript.to_json()))
        assert reading.faults == []
        assert reading.held["result"] >= 6 and reading.held["draw"] >= 6 and reading.held["payment"] >= 8
    assert stage.transcript.closed().opened is None
    assert len(stage.transcript.rounds) == 3
    assert reading.held["receipt"] >= 6  # the last may come when a training is over


@pytest.mark.parametrize(("data", "segments"), [(False, "drawn"), (True, "drawn"), (True, "all"), (False, "none")])
async def test_an_honest_training_comes_out_again(stage, data, segments):
    assert await stage.recompute(stage.transcript, data=data, segments=segments) == []


def swapped(texts: tuple[str, ...], at: int, **changes) -> tuple[str, ...]:
    """One event with other content or tags, its id made to fit; the signature cannot be."""
    event = replace(events.parse(texts[at]), **changes)
    event = replace(event, id=hashlib.sha256(event.hashed()).hexdigest())
    return (*texts[:at], event.to_json(), *texts[at + 1 :])


def other_recipe(stage: Stage) -> Transcript:
    return stage.altered(recipe={**stage.transcript.recipe, "seed": 8})


def other_salt(stage: Stage) -> Transcript:
    return stage.altered(salt="07" * 32)


def a_result_swapped(stage: Stage) -> Transcript:
    tags = tuple(("x", "ab" * 32) if tag[0] == "x" else tag for tag in events.parse(stage.transcript.results[0]).tags)
    return stage.altered(results=swapped(stage.transcript.results, 0, tags=tags))


def a_result_relabelled(stage: Stage) -> Transcript:
    other = events.parse(stage.transcript.results[1]).pubkey
    return stage.altered(results=swapped(stage.transcript.results, 0, pubkey=other))


def made(stage: Stage, at: int, **changes) -> Transcript:
    rounds = list(stage.transcript.rounds)
    rounds[at] = rounds[at].model_copy(update=changes)
    return stage.altered(rounds=tuple(rounds))


def a_weight_changed(stage: Stage) -> Transcript:
    one, *others = stage.transcript.rounds[1].results
    return made(stage, 1, results=(one.model_copy(update={"weight": one.weight * 2}), *others))


def a_result_counted_twice(stage: Stage) -> Transcript:
    results = stage.transcript.rounds[1].results
    return made(stage, 1, results=(*results, results[0]))


def a_result_of_an_earlier_round(stage: Stage) -> Transcript:
    (old, _), (_, kept) = stage.transcript.rounds[0].results, stage.transcript.rounds[1].results
    return made(stage, 1, results=(old.model_copy(update={"round": 1}), kept))


def the_chain_broken(stage: Stage) -> Transcript:
    return made(stage, 1, before="cd" * 32)


def a_round_missing(stage: Stage) -> Transcript:
    first, _, last = stage.transcript.rounds
    return stage.altered(rounds=(first, last))


def the_end_missing(stage: Stage) -> Transcript:
    rounds = stage.transcript.rounds[:-1]
    return stage.altered(rounds=rounds, weights=rounds[-1].after)


def other_weights(stage: Stage) -> Transcript:
    return stage.altered(weights="ef" * 32)


def a_draw_changed(stage: Stage) -> Transcript:
    """The customer signs another question than its close gives."""
    asked = audit.parse(events.parse(stage.transcript.asks[0]))
    again = audit.ask(stage.keys, 8840, asked.request, asked.provider, asked.close, (0, 4), created_at=1)
    return stage.altered(asks=(again.to_json(), *stage.transcript.asks[1:]))


def a_second_close(stage: Stage) -> Transcript:
    """The customer was not happy with the first."""
    first = round_close.parse(events.parse(stage.transcript.closes[0])).close
    second = round_close.build(stage.keys, 8840, first.model_copy(update={"nonce": "01" * 32}), created_at=1)
    return stage.altered(closes=(*stage.transcript.closes, second.to_json()))


def a_close_missing(stage: Stage) -> Transcript:
    return stage.altered(closes=stage.transcript.closes[1:])


def an_answer_missing(stage: Stage) -> Transcript:
    return stage.altered(answers=stage.transcript.answers[1:])


def paid_twice(stage: Stage) -> Transcript:
    return stage.altered(payments=(*stage.transcript.payments, stage.transcript.payments[-1]))


def paid_more(stage: Stage) -> Transcript:
    one, *others = stage.transcript.payments
    return stage.altered(payments=(one.model_copy(update={"amount_msat": one.amount_msat + 1}), *others))


def a_ticket_changed(stage: Stage) -> Transcript:
    opened = stage.transcript.opened
    one, *others = opened.shards
    changed = one.model_copy(update={"shard_sha256": "ab" * 32})
    return stage.altered(opened=opened.model_copy(update={"shards": (changed, *others)}))


def states_changed(stage: Stage) -> Transcript:
    opened = stage.transcript.opened
    id_, said = next(iter(opened.results.items()))
    states = ("ab" * 32, *said["states"][1:])
    return stage.altered(
        opened=opened.model_copy(update={"results": {**opened.results, id_: {**said, "states": states}}})
    )


ALTERATIONS = {
    other_recipe: "recipe",
    other_salt: "recipe",
    a_result_swapped: "result",
    a_result_relabelled: "result",
    a_weight_changed: "weight",
    a_result_counted_twice: "round",
    a_result_of_an_earlier_round: "round",
    the_chain_broken: "theta",
    a_round_missing: "round",
    the_end_missing: "round",
    other_weights: "weights",
    a_draw_changed: "draw",
    a_second_close: "close",
    a_close_missing: "close",
    an_answer_missing: "payment",
    paid_twice: "payment",
    paid_more: "payment",
    a_ticket_changed: "request",
    states_changed: "result",
}


@pytest.mark.parametrize("alter", ALTERATIONS, ids=lambda alter: alter.__name__)
def test_an_alteration_is_named_though_its_customer_signs_it_again(stage, alter):
    reading = check(alter(stage))
    assert reading.held["signature"] == 1 and "signature" not in {fault.step for fault in reading.faults}
    assert ALTERATIONS[alter] in {fault.step for fault in reading.faults}, reading.faults


def test_what_another_has_signed_or_nobody_is_named(stage):
    stranger = stage.transcript.signed(Keys.generate())
    unsigned = stage.transcript.model_copy(update={"rounds": stage.transcript.rounds[:2]})
    for transcript in (stranger, unsigned):
        with pytest.raises(BadSignature):
            transcript.check_signature()
        assert "signature" in {fault.step for fault in check(transcript).faults}


async def test_other_losses_are_named_where_the_data_are_at_hand(stage):
    changed = made(stage, 1, loss=stage.transcript.rounds[1].loss - 50_000)
    assert [(f.step, f.round) for f in await stage.recompute(changed, data=True, segments="none")] == [("loss", 1)]


async def test_a_chain_that_nobody_computed_is_named_by_its_first_round(stage):
    """Consistent in itself, and signed: only computing it again shows it."""
    first, second, last = stage.transcript.rounds
    forged = stage.altered(rounds=(first, second, last.model_copy(update={"after": "ab" * 32})), weights="ab" * 32)
    assert [(f.step, f.round) for f in await stage.recompute(forged)] == [("theta", 2)]


def test_a_transcript_that_is_too_large_is_not_read():
    with pytest.raises(TooLarge):
        Transcript.parse(" " * (Transcript.MAX_BYTES + 1))


async def test_other_data_are_named(stage, tmp_path):
    other = dataset()
    other["x"] = other["x"].flip(0)
    (tmp_path / "digits.safetensors").write_bytes(state.pack(other))
    reading = check(stage.transcript)
    program = tmp_path / "recipe"
    program.write_bytes(RECIPE_AUDITED.pack())
    async with AsyncExitStack() as stack:
        blobs = await stack.enter_async_context(Blobs([], stage.folder / "dora" / "blobs"))
        data = tmp_path / "digits.safetensors"
        with pytest.raises(BadData, match="these are not the data that were trained on"):
            await RoundRecomputation(reading, Local(), blobs, data=data, segments="none").run(program)
    assert reading.faults == []


def configured(stage: Stage) -> Path:
    """A customer's file, with the stores that the training's blobs are cached in."""
    config = stage.folder / "customer.toml"
    (stage.folder / "wallet.token").write_text("none")
    config.write_text(
        f'''
key = "{stage.folder}/dora/key"
relays = ["ws://127.0.0.1:1"]
blossom = ["http://127.0.0.1:1"]
committee = "38841:{"0" * 64}:none"
state = "{stage.folder}/dora"
private_endpoints = true
[wallet]
url = "http://127.0.0.1:1"
token_file = "{stage.folder}/wallet.token"
'''
    )
    return config


def audited(*args: object) -> tuple[int, dict]:
    result = CliRunner().invoke(app, ["audit", *map(str, args), "--json"])
    return result.exit_code, orjson.loads(result.stdout)


def test_the_command_computes_a_training_again_in_a_worker(stage):
    path = stage.folder / "transcript.json"
    path.write_text(stage.transcript.to_json())
    code, said = audited(path, "--config", configured(stage), "--data", stage.folder / "data")
    assert (code, said["ok"], said["computed"], said["faults"]) == (0, True, 6, [])
    code, said = audited(path.parent)
    assert (code, said["ok"], said["recomputed"]) == (0, True, False)
    path.write_text(a_weight_changed(stage).to_json())
    code, said = audited(path, "--config", configured(stage))
    assert (code, said["ok"], said["recomputed"]) == (1, False, False)
    assert [fault["step"] for fault in said["faults"]] == ["weight"]


async def test_payments_of_bought_steps_stand_in_the_transcript_and_alterations_are_named(tmp_path):
    two = RECIPE.model_copy(update={"rounds": 2})
    async with small_market.opened(tmp_path) as market:
        async with provider(market, "ada"), provider(market, "oona", kinds=(8842,)) as oona:
            await train(market, "dora", two, TrainingOrder(1, BUDGET_MSAT, buys_steps=True))
        keys, transcript = Keys.from_file(tmp_path / "dora" / "key"), market.transcript
        assert await market.balance_msat("oona") == sum(one.amount_msat for one in transcript.bought.payments)
    reading = check(Transcript.parse(transcript.to_json()))
    assert reading.faults == [] and check(transcript.closed()).faults == []
    bought = transcript.bought
    assert (len(bought.requests), len(bought.results), len(bought.payments)) == (2, 2, 4)
    assert {one.provider for one in bought.payments} == {oona.public}
    assert oona.public not in {one.provider for one in transcript.payments}

    def faults(**changes) -> set[str]:
        altered = transcript.model_copy(update={"bought": bought.model_copy(update=changes)}).signed(keys)
        return {fault.step for fault in check(altered).faults}

    assert faults() == set()
    assert "signature" in {f.step for f in check(transcript.model_copy(update={"bought": None})).faults}
    assert faults(results=bought.results[:1]) == {"payment"}  # a balance for nothing
    assert faults(results=(*bought.results, bought.results[0])) == {"bought"}
    assert faults(requests=bought.requests[:1]) == {"bought", "payment"}
    assert faults(requests=(transcript.requests[0],)) == {"bought", "payment"}
    assert faults(payments=(*bought.payments, bought.payments[0])) == {"payment"}
    more = bought.payments[0].model_copy(update={"amount_msat": bought.payments[0].amount_msat + 1})
    assert faults(payments=(more, *bought.payments[1:])) == {"payment"}
    other = bought.payments[0].model_copy(update={"provider": keys.public})
    assert faults(payments=(other, *bought.payments[1:])) == {"payment"}


def test_where_nothing_was_bought_a_transcript_is_written_as_before(stage):
    assert "bought" not in orjson.loads(stage.transcript.to_json())
    assert "bought" not in stage.transcript.document()
