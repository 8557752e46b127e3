"""Audits that fail after a step was made of what failed: it is undone, and the weights are those of honest work."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import torch

from nodewire.errors import OverBudget
from nodewire.nostr.keys import Keys
from nodewire.store.blobs import Blobs
from nodewire.training.customer.machine.events import (
    Event,
    RequestPublication,
    ResultJudgement,
    StepCompletion,
    StepRollback,
)
from nodewire.training.customer.machine.journal import Journal
from nodewire.training.customer.machine.state import State
from nodewire.training.customer.market import audits
from nodewire.training.customer.market.context import TrainingOrder
from nodewire.training.engine import bare_loop, state
from nodewire.training.engine.bare_loop import Part
from nodewire.training.protocol.recipe import Compression, Outer, Recipe
from nodewire.training.protocol.result import Progress
from nodewire.training.protocol.round import RoundTicket
from nodewire.training.verify.recomputation import RoundRecomputation
from nodewire.training.verify.transcript import check
from tests.kinds.digits import RECIPE, dataset
from tests.training import small_market
from tests.training.hostile.test_training_fraud import packed
from tests.training.small_market import BUDGET_MSAT, LEAST_MSAT, Conduct, Local, provider, train

torch.set_num_threads(1)


@pytest.fixture
async def market(tmp_path):
    async with small_market.opened(tmp_path) as running:
        yield running


class Cheat:
    """Whose update is a tenth too long in a round, and whose states are none; that is audited when `found` is set."""

    def __init__(self, round_: int) -> None:
        self.found = asyncio.Event()
        self.round, self._round = round_, -1

    def feed(self, edge, given):
        if edge == "open":
            self._round = given["round"]
        return given

    def alter(self, edge, frames):
        if self._round != self.round:
            return frames
        if edge == "update":
            return packed(lambda update: {name: 1.1 * tensor for name, tensor in update.items()})(edge, frames)
        if edge == "train":
            return [replace(one, meta={**one.meta, "state": "ab" * 32}) for one in frames]
        return frames


@asynccontextmanager
async def cheating(market, monkeypatch, name: str, cheat: Cheat):
    async with provider(market, name, Conduct(alter=cheat.alter, feed=cheat.feed), patience_s=2.0) as keys:
        answer = audits._answer

        async def waits(course, request, provider_, *args):
            if (provider_, course.state.debts[request, provider_].round) == (keys.public, cheat.round):
                await cheat.found.wait()
            return await answer(course, request, provider_, *args)

        monkeypatch.setattr(audits, "_answer", waits)
        yield keys


def found(cheat: Cheat, after: int, *, dies: bool = False):
    """The cheat's audit fails once the step of that round is made; from then on the customer may die all the time."""

    def watch(now, event, who):
        if isinstance(event, StepCompletion) and event.round == after:
            cheat.found.set()
        if dies and cheat.found.is_set() and not isinstance(event, Progress):
            raise Killed

    return watch


class Killed(Exception):
    """The customer's process ends here."""


def journal(market) -> list[Event]:
    one = Journal(market.folder / "dora" / "journal.db")
    try:
        return one.events()
    finally:
        one.close()


def lineage(events: list[Event]) -> list[StepCompletion]:
    steps: list[StepCompletion] = []
    for event in events:
        if isinstance(event, StepRollback):
            del steps[event.round :]
        elif isinstance(event, StepCompletion):
            steps.append(event)
    return steps


def expected(market, recipe: Recipe, shards: int = 2, **how) -> bytes:
    counted = {e.round: [Part(c.index, c.round, c.steps) for c in e.counted] for e in lineage(journal(market))}
    return state.pack(bare_loop.run(recipe, dataset(), shards, participation=counted, **how)[0])


def undone(market) -> list[tuple[int, set[str]]]:
    return [(e.round, {who for _, who in e.failed}) for e in journal(market) if isinstance(e, StepRollback)]


async def check_pay(market, done: State, *keys: tuple[str, Keys]) -> None:
    """Everybody has what was owed to it, and nothing twice: prices of what passed, deposits of the rest."""
    for name, who in keys:
        debts = [debt for debt in done.debts.values() if debt.row.provider == who.public]
        owed = sum(debt.row.deposit_msat for debt in debts if debt.deposit == "paid")
        owed += sum(debt.row.balance_msat for debt in debts if debt.balance == "paid")
        assert await market.balance_msat(name) == owed
    accepted = {(e.request, e.provider) for e in journal(market) if isinstance(e, ResultJudgement) and e.accepted}
    failed = {key for key, debt in done.debts.items() if debt.failed}
    assert {key for key, debt in done.debts.items() if debt.balance == "paid"} == accepted - failed


async def verified(market, recipe: Recipe, tmp_path, segments="drawn") -> None:
    program = tmp_path / "program"
    program.write_bytes(recipe.pack())
    reading = check(market.transcript)
    assert reading.faults == []
    assert check(market.transcript.closed()).faults == []
    async with Blobs([], market.folder / "dora" / "blobs") as blobs:
        await RoundRecomputation(reading, Local(), blobs, segments=segments).run(program)
    assert reading.faults == []


RECIPES = {
    "average": RECIPE,
    "nesterov": RECIPE.model_copy(update={"outer": Outer(method="nesterov", lr="0.7", momentum="0.9"), "rounds": 4}),
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("first", [0, 1])
async def test_a_failed_audit_after_the_next_step_takes_both_steps_back(market, monkeypatch, tmp_path, recipe, first):
    cheat = Cheat(first)
    async with (
        cheating(market, monkeypatch, "ada", cheat) as ada,
        provider(market, "bea") as bea,
        provider(market, "cyd", least_msat=2 * LEAST_MSAT) as cyd,
    ):
        done, weights = await train(market, "dora", recipe, on_change=found(cheat, first + 1))
    assert undone(market) == [(first, {ada.public})]
    assert weights == expected(market, recipe) == state.pack(bare_loop.run(recipe, dataset(), 2)[0])
    assert {who for who, _ in done.failures} == {ada.public}
    await check_pay(market, done, ("ada", ada), ("bea", bea), ("cyd", cyd))
    (wrong,) = [debt for debt in done.debts.values() if debt.failed and debt.round == first]
    assert (wrong.row.provider, wrong.balance, wrong.deposit) == (ada.public, "none", "none" if first else "paid")
    bea_rounds = [debt.round for debt in done.debts.values() if debt.row.provider == bea.public]
    assert bea_rounds.count(first + 1) >= 2
    assert len(done.losses) == recipe.rounds
    await verified(market, recipe, tmp_path)


async def test_the_last_round_is_made_again_when_its_audit_fails_after_the_training(market, monkeypatch, tmp_path):
    last = RECIPE.rounds - 1
    cheat = Cheat(last)
    async with (
        cheating(market, monkeypatch, "ada", cheat) as ada,
        provider(market, "bea") as bea,
        provider(market, "cyd", least_msat=2 * LEAST_MSAT),
    ):
        done, weights = await train(market, "dora", RECIPE, on_change=found(cheat, last))
    assert undone(market) == [(last, {ada.public})]
    assert weights == state.pack(bare_loop.run(RECIPE, dataset(), 2)[0])
    await check_pay(market, done, ("ada", ada), ("bea", bea))
    await verified(market, RECIPE, tmp_path, "all")


async def test_a_customer_that_dies_after_everything_that_happens_goes_back_all_the_same(market, monkeypatch, tmp_path):
    cheat, deaths = Cheat(0), 0
    recipe = RECIPES["nesterov"]
    async with (
        cheating(market, monkeypatch, "ada", cheat) as ada,
        provider(market, "bea") as bea,
        provider(market, "cyd", least_msat=2 * LEAST_MSAT) as cyd,
    ):
        while True:
            try:
                done, weights = await train(market, "dora", recipe, on_change=found(cheat, 1, dies=True))
                break
            except Killed:
                deaths += 1
    assert deaths > 15 and undone(market) == [(0, {ada.public})]
    assert weights == state.pack(bare_loop.run(recipe, dataset(), 2)[0])
    await check_pay(market, done, ("ada", ada), ("bea", bea), ("cyd", cyd))
    await verified(market, recipe, tmp_path)


async def test_two_cheats_in_different_rounds(market, monkeypatch, tmp_path):
    """The later one is found first; then the earlier one, and both rounds are made again."""
    monkeypatch.setattr("nodewire.training.customer.market.audits.ASK_AGAIN_S", 0.1)  # also of who has failed by now
    recipe = RECIPE.model_copy(update={"rounds": 5})
    early, late = Cheat(0), Cheat(1)

    def watch(now, event, who):
        if isinstance(event, StepCompletion) and event.round == 2:
            late.found.set()
        if isinstance(event, StepRollback):
            early.found.set()

    async with (
        cheating(market, monkeypatch, "ada", early) as ada,
        cheating(market, monkeypatch, "bea", late) as bea,
        provider(market, "cyd") as cyd,
        provider(market, "dan", least_msat=2 * LEAST_MSAT) as dan,
        provider(market, "eve", least_msat=3 * LEAST_MSAT) as eve,
    ):
        done, weights = await train(market, "dora", recipe, TrainingOrder(3, BUDGET_MSAT), on_change=watch)
    assert undone(market) == [(1, {bea.public}), (0, {ada.public})]
    assert weights == state.pack(bare_loop.run(recipe, dataset(), 3)[0])
    await check_pay(market, done, ("ada", ada), ("bea", bea), ("cyd", cyd), ("dan", dan), ("eve", eve))
    await verified(market, recipe, tmp_path)


@pytest.mark.parametrize(
    "changes",
    [{"method": "int4", "error_feedback": "1.0"}, {"method": "int8", "error_feedback": "1.0", "fragments": 2}],
    ids=["feedback", "both"],
)
async def test_where_something_is_carried_the_round_after_the_one_made_again_goes_on_from_it(
    market, tmp_path, monkeypatch, changes
):
    recipe = RECIPE.model_copy(update={"rounds": 4, "compression": Compression(**changes)})
    cheat = Cheat(1)
    monkeypatch.setattr(Cheat, "alter", lies_of(1))
    async with (
        cheating(market, monkeypatch, "ada", cheat) as ada,
        provider(market, "bea") as bea,
        provider(market, "cyd", least_msat=2 * LEAST_MSAT) as cyd,
    ):
        done, weights = await train(market, "dora", recipe, on_change=found(cheat, 2))
    assert undone(market) == [(1, {ada.public})]
    assert {who for who, _ in done.failures} == {ada.public}
    # Nothing is lost but what the culprit had: only who gets a shard from another begins with nothing.
    taken_over = handed_over(lineage(journal(market)))
    assert weights == expected(market, recipe, taken_over=taken_over)
    assert begun_with(journal(market), 2) == {(2, index) in taken_over for index in (0, 1)}
    assert not {(2, 0), (2, 1)} <= taken_over
    await check_pay(market, done, ("ada", ada), ("bea", bea), ("cyd", cyd))
    await verified(market, recipe, tmp_path)


def begun_with(events: list[Event], round_: int) -> set[bool]:
    """Whether those whose results count in a round were told to begin with nothing."""
    rows = {(e.request, row.provider): row for e in events if isinstance(e, RequestPublication) for row in e.rows}
    (step,) = [step for step in lineage(events) if step.round == round_]
    return {RoundTicket.parse(rows[c.request, c.provider].ticket).carried is None for c in step.counted}


def lies_of(round_: int):
    def alter(self, edge, frames):
        if edge != "train" or self._round != round_:
            return frames
        return [replace(one, meta={**one.meta, "state": "ab" * 32}) for one in frames]

    return alter


def handed_over(steps: list[StepCompletion]) -> set[tuple[int, int]]:
    before: dict[int, str] = {}
    found = set()
    for step in steps:
        found |= {(step.round, c.index) for c in step.counted if before.get(c.index, c.provider) != c.provider}
        before = {c.index: c.provider for c in step.counted}
    return found


async def test_a_cheat_a_quorum_and_a_late_result(market, monkeypatch, tmp_path):
    """The late one of the undone round counts in time when that is made again; its provider is paid once."""
    recipe = Recipe.from_document(RECIPE.document() | {"rounds": 3, "quorum": "0.6", "late": "half"})
    cheat, slow = Cheat(0), asyncio.Event()

    async def waits(edge: str) -> None:
        if edge == "train":
            await slow.wait()

    def watch(now, event, who):
        if isinstance(event, StepCompletion) and event.round == 0:
            slow.set()
        if isinstance(event, StepCompletion) and event.round == 1:
            cheat.found.set()

    async with (
        cheating(market, monkeypatch, "ada", cheat) as ada,
        provider(market, "bea") as bea,
        provider(market, "cyd", Conduct(hold=waits)) as cyd,
        provider(market, "dan", least_msat=2 * LEAST_MSAT) as dan,
    ):
        done, weights = await train(market, "dora", recipe, TrainingOrder(3, BUDGET_MSAT), on_change=watch)
    assert undone(market) == [(0, {ada.public})]
    first = lineage(journal(market))[0].counted
    assert len(first) >= 2 and ada.public not in {one.provider for one in first}
    assert weights == expected(market, recipe, 3)
    await check_pay(market, done, ("ada", ada), ("bea", bea), ("cyd", cyd), ("dan", dan))
    await verified(market, recipe, tmp_path)


class Deaf(asyncio.Future):
    """Of an answer that is never heard."""

    def set_result(self, result):
        pass


async def test_an_audit_that_is_under_way_when_another_of_its_provider_fails_comes_to_nothing(market, monkeypatch):
    monkeypatch.setattr(audits, "ASK_AGAIN_S", 0.05)
    cheat, asked = Cheat(0), asyncio.Event()
    async with (
        cheating(market, monkeypatch, "ada", cheat) as ada,
        provider(market, "bea") as bea,
        provider(market, "cyd", least_msat=2 * LEAST_MSAT) as cyd,
    ):
        answer = audits._answer

        async def unheard(course, request, provider_, *args):
            if (provider_, course.state.debts[request, provider_].round) == (ada.public, 1):
                course.answers[request, provider_] = Deaf()
                asked.set()
            elif provider_ == ada.public:
                await asked.wait()
            return await answer(course, request, provider_, *args)

        monkeypatch.setattr(audits, "_answer", unheard)
        done, weights = await train(market, "dora", RECIPE, on_change=found(cheat, 1))
    assert undone(market) == [(0, {ada.public})]
    assert weights == state.pack(bare_loop.run(RECIPE, dataset(), 2)[0])
    assert {who for who, _ in done.failures} == {ada.public}
    await check_pay(market, done, ("ada", ada), ("bea", bea), ("cyd", cyd))


async def test_where_the_budget_does_not_suffice_for_it_the_training_ends_and_goes_on_with_more(market, monkeypatch):
    cheat = Cheat(0)
    recipe = RECIPE.model_copy(update={"rounds": 2})
    async with (
        cheating(market, monkeypatch, "ada", cheat),
        provider(market, "bea") as bea,
        provider(market, "cyd", least_msat=2 * LEAST_MSAT),
    ):
        with pytest.raises(OverBudget):
            await train(market, "dora", recipe, TrainingOrder(2, 5 * LEAST_MSAT), on_change=found(cheat, 1))
        done, weights = await train(market, "dora", recipe)
    assert weights == state.pack(bare_loop.run(recipe, dataset(), 2)[0])
    await check_pay(market, done, ("bea", bea))


async def test_alterations_of_what_was_undone_are_named(market, monkeypatch):
    cheat = Cheat(0)
    async with (
        cheating(market, monkeypatch, "ada", cheat),
        provider(market, "bea"),
        provider(market, "cyd", least_msat=2 * LEAST_MSAT),
    ):
        await train(market, "dora", RECIPE, on_change=found(cheat, 1))
    keys = Keys.from_file(market.folder / "dora" / "key")
    transcript = market.transcript
    (steps,) = transcript.undone
    assert [made.round for made in steps.rounds] in ([0, 1], [0, 1, 2])

    def faults(**changes) -> set[str]:
        return {fault.step for fault in check(transcript.model_copy(update=changes).signed(keys)).faults}

    assert faults() == set()
    assert "theta" in faults(undone=())
    cut = steps.model_copy(update={"rounds": steps.rounds[1:]})
    assert "theta" in faults(undone=(cut,))
    # What began with a step that was undone counts for nothing: or a customer could name any weights such a step's,
    # have a round trained from there, and show it as one of this training.
    strayed = steps.rounds[-1]
    counted = transcript.rounds[strayed.round].model_copy(update={"results": strayed.results})
    rounds = (*transcript.rounds[: strayed.round], counted, *transcript.rounds[strayed.round + 1 :])
    assert strayed.before != counted.before
    assert "theta" in faults(rounds=rounds)
    other = steps.rounds[0].results[1 - [r.provider for r in steps.rounds[0].results].index(steps.failed[0].provider)]
    blamed = steps.failed[0].model_copy(update={"request": other.request, "provider": other.provider})
    assert {"undone", "payment"} <= faults(undone=(steps.model_copy(update={"failed": (blamed,)}),))
    assert "theta" in faults(rounds=(*steps.rounds, *transcript.rounds[len(steps.rounds) :]))
