"""Cheats end to end: whatever a provider delivers in place of its work, it keeps its deposit and gets no balance."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.training.customer.market.context import TrainingOrder
from nodewire.training.engine import data, state
from nodewire.training.provider.shard_job import ShardRun
from nodewire.training.verify.transcript import check
from tests.kinds.digits import RECIPE, dataset
from tests.training import small_market
from tests.training.market.test_training_market import expected
from tests.training.small_market import BUDGET_MSAT, DEPOSIT_MSAT, LEAST_MSAT, Conduct, provider, train

torch.set_num_threads(1)
ONE_ROUND = RECIPE.model_copy(update={"rounds": 1})
TWO_ROUNDS = RECIPE.model_copy(update={"rounds": 2})


@pytest.fixture
async def market(tmp_path):
    async with small_market.opened(tmp_path) as running:
        yield running


def framed(edge: str, whole: bytes) -> Frame:
    return Frame(edge, 0, (Array("uint8", (len(whole),), whole),), {"end": True})


def update_of(frames) -> dict[str, torch.Tensor]:
    whole = b"".join(bytes(frame.tensors[0].data) for frame in frames)
    return dict(state.unpack(whole, state.types(RECIPE.shapes())))


def packed(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]):
    """Who delivers its update changed."""

    def alter(edge, frames):
        return [framed("update", state.pack(change(update_of(frames))))] if edge == "update" else frames

    return alter


def first(tensors: dict[str, torch.Tensor], change) -> dict[str, torch.Tensor]:
    """Its first tensor changed."""
    name = next(iter(tensors))
    return {**tensors, name: change(tensors[name])}


NOT_UPDATES = {
    "nan": packed(lambda u: first(u, lambda t: torch.full_like(t, float("nan")))),
    "infinite": packed(lambda u: first(u, lambda t: torch.full_like(t, float("inf")))),
    "a name missing": packed(lambda u: dict(list(u.items())[1:])),
    "a name too many": packed(lambda u: {**u, "more": torch.zeros(3)}),
    "another shape": packed(lambda u: first(u, lambda t: t.flatten())),
    "another dtype": packed(lambda u: first(u, lambda t: t.to(torch.int32))),
}


@pytest.mark.parametrize("alter", NOT_UPDATES.values(), ids=NOT_UPDATES)
async def test_what_is_no_update_never_gets_into_the_step(market, alter):
    async with (
        provider(market, "ada", Conduct(alter=alter)) as ada,
        provider(market, "bea"),
        provider(market, "cyd", least_msat=2 * LEAST_MSAT),
    ):
        done, weights = await train(market, "dora", ONE_ROUND)
    assert weights == expected(ONE_ROUND)
    assert [who for who, _ in done.failures] == [ada.public]
    assert await market.balance_msat("ada") == DEPOSIT_MSAT


OTHER_UPDATES = {
    "sign flipped": packed(lambda u: {name: -t for name, t in u.items()}),
    "ten times": packed(lambda u: {name: 10 * t for name, t in u.items()}),
    "noise of its length": packed(
        lambda u: {
            name: torch.randn(t.shape, generator=torch.Generator().manual_seed(3)) * t.std() for name, t in u.items()
        }
    ),
}


@pytest.mark.parametrize("alter", OTHER_UPDATES.values(), ids=OTHER_UPDATES)
async def test_an_update_that_is_not_what_came_of_the_work_is_doubted_and_its_end_audited(market, alter):
    async with (
        provider(market, "ada", Conduct(alter=alter)) as ada,
        provider(market, "bea"),
        provider(market, "cyd", least_msat=2 * LEAST_MSAT),
    ):
        done, _ = await train(market, "dora", ONE_ROUND)
    assert ada.public in {who for who, _ in done.failures}
    assert await market.balance_msat("ada") == DEPOSIT_MSAT
    assert done.debts[next(iter(done.requests)), ada.public].balance == "none"


def shards() -> list[data.Shard]:
    return data.split(dataset(), 2, RECIPE)[0]


@dataclass
class Wrong:
    """Who trains honestly on what is not its own: `shard`, and as if it were number `index`, if one is given."""

    shard: bytes
    index: int | None = None
    fed: int = 0

    def __call__(self, edge: str, given: Any) -> Any:
        if edge == "open" and self.index is not None:
            return {**given, "index": self.index}
        if edge == "shard":
            self.fed += 1
            return framed("shard", self.shard)
        return given


def noise() -> bytes:
    """A shard of nobody's data."""
    rows = dataset()
    generator = torch.Generator().manual_seed(5)
    rows = {"x": torch.rand(rows["x"].shape, generator=generator), "y": rows["y"].flip(0)}
    return data.split(rows, 2, RECIPE)[0][0].packed


@pytest.mark.parametrize("what", ["wrong shard", "copy", "garbage"])
async def test_who_trains_on_something_else_is_not_paid_for_it(market, what):
    """Commitment, snapshots and update are all of one piece: only computing it again tells."""
    one, other = shards()
    # ada may get either shard: it is wrong on both
    feeds = {
        "wrong shard": [Wrong(other.packed), Wrong(one.packed)],
        "copy": [Wrong(other.packed, 1), Wrong(one.packed, 0)],
        "garbage": [Wrong(noise()), Wrong(noise())],
    }[what]
    chosen: list[Wrong] = []

    def feed(edge, given):
        if edge == "open":
            chosen.append(feeds[given["index"]])
        return chosen[-1](edge, given)

    async with (
        provider(market, "ada", Conduct(feed=feed)) as ada,
        provider(market, "bea"),
        provider(market, "cyd", least_msat=2 * LEAST_MSAT),
    ):
        done, _ = await train(market, "dora", ONE_ROUND)
    assert chosen and chosen[-1].fed
    assert ada.public in {who for who, _ in done.failures}
    assert await market.balance_msat("ada") == DEPOSIT_MSAT


@dataclass
class Replay:
    """Who trains one round, and from then on commits to and delivers the same again."""

    states: list[str] = field(default_factory=list)
    update: list[Frame] = field(default_factory=list)
    rounds: int = 0
    at: int = 0

    def alter(self, edge, frames):
        if edge == "update":
            self.update = self.update or frames
            self.rounds, self.at = self.rounds + 1, 0
            return self.update
        return [self._trained(one) for one in frames] if edge == "train" else frames

    def _trained(self, frame: Frame) -> Frame:
        if self.rounds == 0:
            self.states.append(frame.meta["state"])
        self.at += 1
        return replace(frame, meta={**frame.meta, "state": self.states[self.at - 1]})


async def test_a_result_of_an_earlier_round_is_not_paid_again(market):
    replay = Replay()
    async with (
        provider(market, "ada", Conduct(alter=replay.alter)) as ada,
        provider(market, "bea"),
        provider(market, "cyd", least_msat=2 * LEAST_MSAT),
    ):
        done, _ = await train(market, "dora", TWO_ROUNDS)
    assert replay.rounds == 2
    assert ada.public in {who for who, _ in done.failures}
    assert await market.balance_msat("ada") <= LEAST_MSAT + DEPOSIT_MSAT  # the first round is its own work


async def test_anothers_result_under_ones_own_name_opens_nothing(market, monkeypatch):
    """A commitment has its author in it: who takes another's has committed to nothing of its own."""
    made: dict[str, str] = {}
    from nodewire.training.protocol import result

    build = result.build

    def relabelled(keys, kind, request, customer, goods, *, created_at):
        if keys.public == made["ada"]:
            goods = replace(goods, commitment=hashlib.sha256(goods.commitment.encode()).hexdigest())
        return build(keys, kind, request, customer, goods, created_at=created_at)

    monkeypatch.setattr("nodewire.training.protocol.result.build", relabelled)
    async with (
        provider(market, "ada") as ada,
        provider(market, "bea"),
        provider(market, "cyd", least_msat=2 * LEAST_MSAT),
    ):
        made["ada"] = ada.public
        done, weights = await train(market, "dora", ONE_ROUND)
    assert weights == expected(ONE_ROUND)
    assert [(who, "bad-hash" in reason) for who, reason in done.failures] == [(ada.public, True)]
    assert await market.balance_msat("ada") == DEPOSIT_MSAT


async def test_who_commits_to_one_update_and_delivers_another_is_not_paid(market, monkeypatch):
    upload, cheat = ShardRun._upload, []

    async def swaps(self, pieces):
        if self._keys.public in cheat:
            from nodewire.store import sealed_blobs

            return await upload(self, sealed_blobs.seal([b"something else"], "ab" * 32))
        return await upload(self, pieces)

    monkeypatch.setattr(ShardRun, "_upload", swaps)
    async with (
        provider(market, "ada") as ada,
        provider(market, "bea"),
        provider(market, "cyd", least_msat=2 * LEAST_MSAT),
    ):
        cheat.append(ada.public)
        done, weights = await train(market, "dora", ONE_ROUND)
    assert weights == expected(ONE_ROUND)
    assert [who for who, _ in done.failures] == [ada.public]
    assert await market.balance_msat("ada") == DEPOSIT_MSAT


async def test_who_delivers_twice_is_paid_once(market, monkeypatch):
    deliver = ShardRun._deliver

    async def twice(self, *args):
        await deliver(self, *args)
        await deliver(self, *args)

    monkeypatch.setattr(ShardRun, "_deliver", twice)
    async with provider(market, "ada"), provider(market, "bea"):
        done, weights = await train(market, "dora", TWO_ROUNDS)
        async with Pool([market.relay]) as pool:
            results = await pool.fetch([Filter(kinds=frozenset({6840}))])
    assert len(results) == 8
    assert weights == expected(TWO_ROUNDS)
    assert done.failures == ()
    assert [await market.balance_msat(name) for name in ("ada", "bea")] == [2 * LEAST_MSAT] * 2
    assert check(market.transcript).faults == []


def from_segment(first_wrong: int):
    """Who goes another way from a segment on, and delivers where that leads."""
    seq = 0

    def alter(edge, frames):
        nonlocal seq
        if edge == "update":
            seq = 0
            return packed(lambda u: {name: 1.1 * t for name, t in u.items()})(edge, frames)
        if edge != "train":
            return frames
        said = []
        for frame in frames:
            seq += 1
            other = hashlib.sha256(frame.meta["state"].encode()).hexdigest()
            said.append(replace(frame, meta={**frame.meta, "state": other}) if seq > first_wrong else frame)
        return said

    return alter


async def test_without_audits_what_was_paid_on_its_looks_is_found_in_the_transcript(market, tmp_path):
    """The recipe's choice; and whoever has the transcript can say who did not do which segment in which round."""
    from nodewire.store.blobs import Blobs
    from nodewire.training.verify.recomputation import RoundRecomputation
    from tests.training.small_market import Local

    looks = {"segment": 4, "fraction": "0.0"}
    trusting = {"own": "-10000.0", "gain": "-10000.0"}
    recipe = TWO_ROUNDS.model_copy(
        update={
            "audit": RECIPE.audit.model_copy(update=looks),
            "validation": RECIPE.validation.model_copy(update=trusting),
        }
    )
    async with provider(market, "ada", Conduct(alter=from_segment(2))) as ada:
        done, _ = await train(market, "dora", recipe, TrainingOrder(1, BUDGET_MSAT))
    assert done.failures == ()
    reading = check(market.transcript)
    assert reading.faults == []
    program = tmp_path / "recipe"
    program.write_bytes(recipe.pack())
    async with Blobs([], market.folder / "dora" / "blobs") as blobs:
        await RoundRecomputation(reading, Local(), blobs, segments="all").run(program)
    wrong = [(fault.step, fault.round, fault.provider, fault.segment) for fault in reading.faults]
    assert wrong == [("segment", 0, ada.public, 2), ("segment", 1, ada.public, 2)]
