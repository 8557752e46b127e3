"""What providers carry from round to round: parity with the bare loop, refusals, crashes, and who lies about it."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
import torch

from nodewire.errors import NotFound, WorkerFailed
from nodewire.nostr.keys import Keys
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.store.blobs import Blobs
from nodewire.training.customer.machine.events import RequestPublication
from nodewire.training.engine import bare_loop, state
from nodewire.training.engine.update import compression
from nodewire.training.protocol.recipe import Compression, Outer
from nodewire.training.protocol.result import Progress
from nodewire.training.provider.carried_store import KEPT
from nodewire.training.provider.store import KeptShards
from nodewire.training.verify.recomputation import RoundRecomputation
from nodewire.training.verify.transcript import check
from tests.kinds.digits import RECIPE, dataset
from tests.training import small_market
from tests.training.small_market import DEPOSIT_MSAT, LEAST_MSAT, Conduct, Local, provider, train

torch.set_num_threads(1)
NESTEROV = Outer(method="nesterov", lr="0.7", momentum="0.9")
FEEDBACK = RECIPE.model_copy(
    update={"compression": Compression(method="int4", error_feedback="0.9"), "outer": NESTEROV}
)
FRAGMENTS = RECIPE.model_copy(update={"rounds": 5, "compression": Compression(fragments=2), "outer": NESTEROV})
BOTH = FRAGMENTS.model_copy(
    update={"compression": Compression(method="int4", block=128, fragments=2, error_feedback="1.0")}
)
FORMS = pytest.mark.parametrize("recipe", [FEEDBACK, FRAGMENTS, BOTH], ids=["feedback", "fragments", "both"])


@pytest.fixture
async def market(tmp_path):
    async with small_market.opened(tmp_path) as running:
        yield running


def expected(recipe, shards=2, taken_over=()) -> bytes:
    return state.pack(bare_loop.run(recipe, dataset(), shards, taken_over=taken_over)[0])


def handed_over(done) -> set[tuple[int, int]]:
    """Rounds and shards whose accepted result is of another provider than the one of the round before."""
    made = {(debt.round, debt.row.index): debt.row.provider for debt in done.debts.values() if debt.balance == "paid"}
    return {(round_, index) for (round_, index), who in made.items() if made.get((round_ - 1, index), who) != who}


@FORMS
async def test_the_market_makes_what_the_bare_loop_makes(market, recipe):
    async with provider(market, "ada"), provider(market, "bea"):
        done, weights = await train(market, "dora", recipe)
    assert weights == expected(recipe, taken_over=handed_over(done))
    assert weights != expected(recipe.model_copy(update={"compression": Compression(method="int4")}))
    assert done.failures == ()
    assert [await market.balance_msat(name) for name in ("ada", "bea")] == [recipe.rounds * LEAST_MSAT] * 2
    assert len(list((market.folder / "ada" / "carried").iterdir())) <= 2 * KEPT
    assert not list((market.folder / "ada" / "made").iterdir())


def fails_in_round(which: int):
    """A provider whose worker fails in the so-manieth round that it begins (from 0)."""
    begun = itertools.count()

    def alter(edge, frames):
        if edge == "train" and frames[0].seq == 0 and next(begun) == which:
            raise WorkerFailed("train", "out of order")
        return frames

    return alter


@FORMS
async def test_who_takes_over_begins_with_nothing(market, recipe):
    async with (
        provider(market, "ada", Conduct(alter=fails_in_round(2))),
        provider(market, "bea"),
        provider(market, "cyd", least_msat=2 * LEAST_MSAT),
    ):
        done, weights = await train(market, "dora", recipe)
    changes = handed_over(done)
    assert len(done.failures) == 1 and min(changes)[0] <= 2
    assert weights == expected(recipe, taken_over=changes) != expected(recipe)


@FORMS
async def test_who_has_lost_what_it_carried_says_so_and_begins_with_nothing(market, recipe):
    """Its disk is gone between two rounds; it is asked again, and gets no less."""

    def lose(state_, event, who):
        if isinstance(event, RequestPublication) and event.round == 1:
            for path in (market.folder / "ada" / "carried").iterdir():
                path.unlink()

    async with provider(market, "ada") as ada, provider(market, "bea"):
        done, weights = await train(market, "dora", recipe, on_change=lose)
    lost = {(1, debt.row.index) for debt in done.debts.values() if (debt.row.provider, debt.round) == (ada.public, 1)}
    assert weights == expected(recipe, taken_over=lost | handed_over(done)) != expected(recipe)
    assert done.failures == ()
    assert len([debt for debt in done.debts.values() if debt.round == 1]) == 3
    assert [await market.balance_msat(name) for name in ("ada", "bea")] == [recipe.rounds * LEAST_MSAT] * 2


class Killed(Exception):
    """The customer's process ends here."""


async def test_a_customer_that_dies_after_everything_that_happens_goes_on_with_what_is_carried(market):
    deaths = 0

    def die(state_, event, who):
        if not isinstance(event, Progress):
            raise Killed

    recipe = BOTH.model_copy(update={"rounds": 3})
    async with provider(market, "ada"), provider(market, "bea"):
        while True:
            try:
                done, weights = await train(market, "dora", recipe, on_change=die)
                break
            except Killed:
                deaths += 1
    assert deaths > 15
    assert weights == expected(recipe, taken_over=handed_over(done))


async def test_a_provider_that_dies_after_everything_that_it_says_goes_on_from_what_it_carried(market):
    died = asyncio.Event()
    said: set[tuple[object, ...]] = set()

    def dies(event):
        what = event.kind, event.tag("e"), event.tag("status")
        if what not in said:
            said.add(what)
            died.set()

    async def ada():
        while True:
            died.clear()
            async with provider(market, "ada", published=dies):
                await died.wait()

    async with provider(market, "bea"):
        keeps_dying = asyncio.create_task(ada())
        done, weights = await train(market, "dora", BOTH)
        keeps_dying.cancel()
    assert weights == expected(BOTH, taken_over=handed_over(done))
    assert done.failures == () and len(said) >= 10
    assert [await market.balance_msat(name) for name in ("ada", "bea")] == [BOTH.rounds * LEAST_MSAT] * 2


@pytest.mark.parametrize("recipe", [RECIPE.model_copy(update={"rounds": 2}), FEEDBACK], ids=["plain", "feedback"])
async def test_who_dies_in_an_upload_does_not_train_for_it_again(market, monkeypatch, recipe):
    steps, dying = [], asyncio.Event()

    def count(edge, frames):
        if edge == "train":
            steps.extend(frame.seq for frame in frames)
        return frames

    monkeypatch.setattr("nodewire.protocol.model.inline_blob.MAX_BYTES", 0)  # so small a result would not be uploaded
    put = Blobs.put

    async def hangs(self, source, *args, **kwargs):
        if not dying.is_set() and isinstance(source, Path) and source.parent == market.folder / "ada" / "made":
            dying.set()
            await asyncio.Event().wait()
        return await put(self, source, *args, **kwargs)

    monkeypatch.setattr(Blobs, "put", hangs)
    async with provider(market, "bea"):
        async with provider(market, "ada", Conduct(alter=count)):
            training = asyncio.create_task(train(market, "dora", recipe))
            await dying.wait()
        async with provider(market, "ada", Conduct(alter=count)):
            done, weights = await training
    assert weights == expected(recipe, taken_over=handed_over(done))
    assert done.failures == ()
    assert steps == [0, 1] * recipe.rounds


def carries_on_more(edge, frames):
    """It commits to another residual than packing has left."""
    return [swollen(one) for one in frames] if edge == "carry" else frames


def shows_another(edge, frames):
    """What it shows as carried into a round is not what it has committed to."""
    if edge != "reveal" or b'"residual.' not in frames[0].tensors[0].data[:200]:
        return frames
    return [swollen(one) for one in frames]


def shows_nothing(edge, frames):
    if edge == "reveal" and b'"residual.' in frames[0].tensors[0].data[:200]:
        raise NotFound("snapshot", "gone")
    return frames


def swollen(frame: Frame[Array]) -> Frame[Array]:
    """With the last number another."""
    whole = bytes(frame.tensors[0].data)
    whole = whole[:-4] + b"\0\0\0\x3f"
    return Frame(frame.edge, frame.seq, (Array("uint8", (len(whole),), whole),), frame.meta)


def explodes(edge, frames):
    """A provider whose states are honest, and whose update would be the end of the model."""
    if edge != "update":
        return frames
    (frame,) = frames
    delta = compression.unpack(bytes(frame.tensors[0].data), RECIPE.shapes(), FEEDBACK.compression)
    huge, _ = compression.pack({name: 1e6 * one for name, one in delta.items()}, FEEDBACK.compression, None)
    return [Frame(edge, frame.seq, (Array("uint8", (len(huge),), huge),), frame.meta)]


@pytest.mark.parametrize("credit_msat", [0, 100 * LEAST_MSAT])
async def test_an_update_out_of_all_proportion_is_audited_before_it_reaches_the_weights(market, credit_msat):
    async with (
        provider(market, "ada", Conduct(alter=explodes), credit_msat=credit_msat) as ada,
        provider(market, "bea"),
        provider(market, "cyd", least_msat=2 * LEAST_MSAT),
    ):
        done, weights = await train(market, "dora", FEEDBACK)
    assert {who for who, _ in done.failures} == {ada.public}
    assert weights == expected(FEEDBACK, taken_over=handed_over(done))
    assert await market.balance_msat("ada") == DEPOSIT_MSAT


@pytest.mark.parametrize("cheat", [carries_on_more, shows_another, shows_nothing])
async def test_who_lies_about_what_it_carries_gets_no_balance_for_it(market, monkeypatch, cheat):
    monkeypatch.setattr("nodewire.training.customer.market.audits.AUDIT_S", 5.0)  # a machine may be busy
    async with (
        provider(market, "ada", Conduct(alter=cheat)) as ada,
        provider(market, "bea"),
        provider(market, "cyd", least_msat=2 * LEAST_MSAT),
    ):
        done, _ = await train(market, "dora", FEEDBACK)
    assert {who for who, _ in done.failures} == {ada.public}
    paid = {debt.round for debt in done.debts.values() if debt.row.provider == ada.public and debt.balance == "paid"}
    assert paid <= (set() if cheat is carries_on_more else {0})  # nothing is carried into the first round
    assert await market.balance_msat("ada") == (LEAST_MSAT if paid else DEPOSIT_MSAT)


async def test_a_transcript_has_what_was_carried_and_comes_out_again(market, tmp_path):
    recipe = BOTH.model_copy(update={"rounds": 3})
    async with provider(market, "ada"), provider(market, "bea"):
        await train(market, "dora", recipe)
    keys = Keys.from_file(market.folder / "dora" / "key")
    program = tmp_path / "program"
    program.write_bytes(recipe.pack())
    for segments in ("drawn", "all"):
        reading = check(market.transcript)
        async with Blobs([], market.folder / "dora" / "blobs") as blobs:
            await RoundRecomputation(reading, Local(), blobs, data=None, segments=segments).run(program)
        assert reading.faults == [] and reading.held["carried"] >= 2
    opened = market.transcript.opened
    told = next(one for one in opened.shards if one.carried)
    shards = tuple(one.model_copy(update={"carried": None}) if one is told else one for one in opened.shards)
    altered = market.transcript.model_copy(update={"opened": opened.model_copy(update={"shards": shards})})
    assert any("not the ticket" in fault.reason for fault in check(altered.signed(keys)).faults)


async def test_who_dies_between_a_delivery_and_writing_it_down_delivers_again_without_training(market, monkeypatch):
    steps, dying = [], asyncio.Event()

    def count(edge, frames):
        if edge == "train":
            steps.append(frames[0].seq)
        return frames

    delivered = KeptShards.delivered
    async with provider(market, "bea"):
        with monkeypatch.context() as patch:
            async with provider(market, "ada", Conduct(alter=count)) as ada:

                def dies(self, request):
                    (database,) = self._db.execute("PRAGMA database_list").fetchall()
                    if "/ada/" not in database[2]:
                        return delivered(self, request)
                    dying.set()
                    raise asyncio.CancelledError

                patch.setattr(KeptShards, "delivered", dies)
                training = asyncio.create_task(train(market, "dora", FEEDBACK))
                await dying.wait()
        async with provider(market, "ada", Conduct(alter=count)):
            done, weights = await training
    assert weights == expected(FEEDBACK, taken_over=handed_over(done))
    mine = [debt for debt in done.debts.values() if debt.row.provider == ada.public and debt.balance == "paid"]
    assert len(steps) <= 2 * len(mine)
