"""When a generation looks for another ring, whom it does without, and what it may spend on that."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

from nodewire.customer.migration import migrator
from nodewire.customer.migration.migrator import MAX_MOVES, Migrator
from nodewire.customer.migration.race import Race
from nodewire.errors import NoProvider
from nodewire.protocol.job.plan import Terms
from tests.customer.script import CHUNK, TOKENS, contender, last
from tests.protocol import documents

STEP_S, SLOW_S = 0.01, 1.0
ADA, BEA, CYD = (keys.public for keys in documents.PROVIDERS)
DAN, EVE = "dd" * 32, "ee" * 32
ADS = {public: SimpleNamespace(wire=("127.0.0.1:1",)) for public in (ADA, BEA, CYD)}


class Market:
    """Plans by the terms' exclusions: who is left out is replaced by who stands for it."""

    def __init__(self):
        self.instead = {BEA: DAN, DAN: EVE}
        self.asked: list[Terms] = []
        self.next_ms = 5_000

    def terms(self, asked, units):
        return asked

    async def draw(self, manifest, terms, *, busy, wish, patience):
        self.asked.append(terms)
        plan = documents.plan(next_result_ms=self.next_ms)
        tasks = []
        for one in plan.tasks:
            who = one.provider
            while who in terms.excluded:
                if who not in self.instead:
                    raise NoProvider(one.task, "nobody")
                who = self.instead[who]
            tasks.append(one.model_copy(update={"provider": who}))
        return SimpleNamespace(plan=plan.model_copy(update={"tasks": tuple(tasks)}))


class Made:
    """A generation, as Moving sees it, whose tokens come as quick as the test says."""

    def __init__(self, *, budget_msat=10**9, resplit_msat=10**9, left=1_000):
        self.paces = {ADA: 100, BEA: 900_000, CYD: 100}
        self.market = Market()
        self.session = SimpleNamespace(
            planner=self.market, node=SimpleNamespace(pace=self.pace), log=logging.getLogger("nodewire.customer")
        )
        self.manifest = documents.manifest().model_copy(update={"chunk": CHUNK})
        self.terms = documents.plan().terms.model_copy(update={"max_total_msat": budget_msat})
        self.positions, self.ids, self.moves, self.bought = 40, list(TOKENS[:40]), [], []
        self.lefts = left
        self.race = Race(self.decided, lambda contender: None)
        self.lead = contender(tokens=left, ads=ADS)
        self.lead.started_s = STEP_S
        self.race.begin(self.lead)
        self.moving = Migrator(self, self.race, resplit_msat)

    def remaining(self):
        return self.lefts

    async def pace(self, public, wire, request, patience_s):
        return self.paces[public]

    def decided(self, contender, outcome):
        self.moving.decided(contender, outcome)

    def job(self, terms, patience):
        self.bought.append(terms)
        return contender(len(self.ids), ads=ADS)

    def tokens(self, step_s):
        """Enough that its reader knows how quick the ring is."""
        lead, now_s = self.race.lead, 1_000.0
        for _ in range(4 * 4 + 1):
            now_s += step_s
            lead.pace.record(now_s, step_s)
            lead.at += 1
            if lead.at % 4 == 0:
                self.moving.look()

    async def look(self):
        """As `look` does once in a while, whenever that is."""
        self.moving._next_s = 0.0
        self.race.lead.at -= self.race.lead.at % 4
        self.moving.look()
        if self.moving._looking is not None:
            await self.moving._looking


@pytest.fixture
async def make():
    made = []

    async def begin(**changes):
        one = Made(**changes)
        made.append(one)
        await asyncio.sleep(0)
        one.lead.is_begun = True
        one.tokens(STEP_S)
        return one

    yield begin
    for one in made:
        await one.moving.end()
        await one.race.end()


async def test_a_ring_that_is_as_quick_as_ever_is_kept(make):
    made = await make()
    await made.look()
    assert made.bought == []
    assert made.market.asked[-1].excluded == ()


async def test_who_takes_most_of_a_slow_step_by_its_own_word_is_done_without(make):
    made = await make()
    made.tokens(SLOW_S)
    await made.look()
    assert [terms.excluded for terms in made.bought] == [(BEA,)]
    (move,) = made.moves
    assert (move.slow, move.before["stage.0"], move.after["stage.0"]) == ((BEA,), BEA, DAN)


async def test_who_does_not_say_how_quick_it_is_is_done_without(make):
    made = await make()
    made.paces = {ADA: 100, BEA: None, CYD: 100}
    made.tokens(SLOW_S)
    await made.look()
    assert made.bought[0].excluded == (BEA,)


async def test_where_nobody_says_that_it_is_slow_each_is_tried_once(make):
    made = await make()
    made.paces = {ADA: 100, BEA: 90, CYD: 80}
    made.tokens(SLOW_S)
    for _ in range(5):
        await made.look()
        if made.race.has_second:
            made.race._out(made.race._second.contender, "slower")
    left_out = [set(terms.excluded) & {ADA, BEA, CYD} for terms in made.market.asked]
    assert left_out[:3] == [{ADA}, {BEA}, {CYD}]
    assert len(made.moves) == 1  # only the stage stands twice


async def test_who_did_not_keep_up_is_in_no_plan_after_that_though_its_ad_flaps(make):
    made = await make()
    made.tokens(SLOW_S)
    for _ in range(4):
        await made.look()
        if made.race.has_second:
            made.race._out(made.race._second.contender, "slower")
    assert [move.after["stage.0"] for move in made.moves] == [DAN, EVE]


async def test_a_node_that_joins_is_gone_over_to_only_if_it_is_much_quicker(make):
    made = await make(left=100_000)
    made.market.instead = {}
    draw = made.market.draw

    async def joined(*given, **fields):
        plan = (await draw(*given, **fields)).plan
        first, stage, last = plan.tasks
        tasks = (first, stage.model_copy(update={"provider": DAN}), last)
        return SimpleNamespace(plan=plan.model_copy(update={"tasks": tasks}))

    made.market.draw = joined
    made.market.next_ms = 4_500  # by its word a sixth quicker
    await made.look()
    assert made.bought == []
    made.market.next_ms = 3_000  # three times
    await made.look()
    assert len(made.bought) == 1
    assert made.moves[0].slow == ()


@pytest.mark.parametrize("changes", [{"resplit_msat": 0}, {"left": 3}], ids=["off", "almost-over"])
async def test_there_is_no_looking_where_nothing_can_come_of_it(make, changes):
    made = await make(**changes)
    made.tokens(SLOW_S)
    await made.look()
    assert made.market.asked == []


async def test_a_move_may_cost_so_much_beside_what_it_costs_to_stay(make):
    made = await make(resplit_msat=3_000)  # a chunk; the text so far is five
    made.tokens(SLOW_S)
    await made.look()
    assert made.bought == []


async def test_no_move_is_bought_that_the_budget_does_not_cover_beside_the_job_under_way(make):
    # Both have a thousand tokens, of chunks of eight at 3,000 msat: 126 chunks, and 130 with the text so far.
    short = await make(budget_msat=(126 + 130) * 3_000 - 1)
    short.tokens(SLOW_S)
    await short.look()
    assert short.bought == []
    enough = await make(budget_msat=(126 + 130) * 3_000)
    enough.tokens(SLOW_S)
    await enough.look()
    assert [terms.max_total_msat for terms in enough.bought] == [130 * 3_000]


async def test_a_generation_moves_only_so_often(make, monkeypatch):
    made = await make()
    made.market.instead = {who: f"{n:064x}" for n, who in enumerate([BEA, *(f"{n:064x}" for n in range(20))])}
    made.tokens(SLOW_S)
    for _ in range(2 * MAX_MOVES):
        await made.look()
        if made.race.has_second:
            made.race._out(made.race._second.contender, "slower")
    assert len(made.moves) == MAX_MOVES


async def test_a_session_whose_last_token_comes_while_it_looks_goes_over_to_nobody(make):
    """Its job is settled for seconds after that, and the other ring would go on with the text beyond its end."""
    made = await make()
    made.tokens(SLOW_S)
    draw, drawing, ended = made.market.draw, asyncio.Event(), asyncio.Event()

    async def slowly(*given, **fields):
        drawing.set()
        await ended.wait()
        return await draw(*given, **fields)

    made.market.draw = slowly
    looking = asyncio.create_task(made.look())
    await asyncio.wait_for(drawing.wait(), 5)
    made.lead.bought.purchase.put(last(TOKENS[40]))
    assert (await asyncio.wait_for(made.race.next(made.ids), 5)).end
    ended.set()
    await looking
    assert made.market.asked and not made.lead.task.done()
    assert made.bought == []


async def test_where_there_is_nothing_to_see_it_looks_more_and_more_seldom(make):
    made = await make()
    pauses = []
    for _ in range(8):
        await made.look()
        pauses.append(made.moving._pause_s)
    assert pauses[:3] == [2 * migrator.LOOK_S, 4 * migrator.LOOK_S, 8 * migrator.LOOK_S]
    assert pauses[-1] == migrator.MAX_LOOK_S
