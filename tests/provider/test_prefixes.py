"""Whose prompts a stage looks among is the provider's word; what it found stays between the two."""

from types import SimpleNamespace

from nodewire.protocol.frame import Frame
from nodewire.provider.prefixes import Finding, UnpaidPrompts, whose

ALICE, BOB = "aa" * 32, "bb" * 32
ENGINES = {"driver": "decoder.driver", "stage.0": "decoder.stage", "stage.1": "decoder.stage"}
MANIFEST = SimpleNamespace(
    chunk=64, tasks=[SimpleNamespace(name=name, engine=engine) for name, engine in ENGINES.items()]
)


class Worker:
    """Answers each frame with itself, and what it says was found of it."""

    def __init__(self):
        self.opened, self.load = {}, None

    async def open(self, task, session, params, codings):
        self.opened[task] = params

    async def receive(self, task, session, frame):
        return [frame]


def answer(found):
    return Frame("hidden.1", 0, (), {"pos": 0, "chunk": 0, "cached": found})


def test_a_customer_finds_its_own_unless_the_operator_shares():
    assert whose("own", ALICE) != whose("own", BOB)
    assert whose("shared", ALICE) == whose("shared", BOB) not in ("", ALICE, BOB)
    assert whose("off", ALICE) == ""


def test_those_for_whom_a_customer_sends_do_not_find_each_others():
    names = {whose("own", ALICE), whose("own", BOB), *(whose("own", c, a) for c in (ALICE, BOB) for a in ("01", "02"))}
    assert len(names) == 6
    assert whose("own", ALICE, "01") == whose("own", ALICE, "01")
    assert whose("shared", ALICE, "01") == whose("shared", BOB)
    assert whose("off", ALICE, "01") == ""


async def test_stages_alone_are_told_whose_prompts_they_are():
    for name in (ALICE, ""):
        worker = Worker()
        finding = Finding(worker, MANIFEST, name, UnpaidPrompts())
        for task in ENGINES:
            await finding.open(task, "s", {"max_tokens": 5})
        told = {"max_tokens": 5} | ({"prefixes": ALICE} if name else {})
        assert worker.opened == {"driver": {"max_tokens": 5}, "stage.0": told, "stage.1": told}


async def test_what_counts_is_what_every_stage_had_found_and_nobody_else_hears_of_it():
    finding = Finding(Worker(), MANIFEST, ALICE, UnpaidPrompts())
    (out,) = await finding.receive("stage.0", "s", answer(192))
    assert out.meta == {"pos": 0, "chunk": 0}
    assert (finding.units(["stage.0"]), finding.units(["stage.0", "stage.1"]), finding.units(["driver"])) == (3, 0, 0)
    await finding.receive("stage.1", "s", answer(64))
    await finding.receive("stage.1", "s", answer(100))
    assert finding.units(list(ENGINES)) == 2  # a unit that is found in part is computed


async def test_a_prompt_that_nobody_paid_for_costs_its_whole_price_when_it_is_found():
    unpaid, tasks = UnpaidPrompts(), list(ENGINES)

    async def job(name, units, found, *, is_paid):
        finding = Finding(Worker(), MANIFEST, name, unpaid)
        for stage in ("stage.0", "stage.1"):
            await finding.receive(stage, "s", answer(found * MANIFEST.chunk))
        cached = finding.cached(tasks, units) if is_paid else None
        finding.ended(tasks, units)
        return cached

    await job(ALICE, 9, 0, is_paid=False)
    assert await job(BOB, 9, 8, is_paid=True) == 8
    assert await job(ALICE, 1, 0, is_paid=True) == 0  # another prompt pays nothing of the first one's
    assert await job(ALICE, 9, 8, is_paid=True) == 0
    assert await job(ALICE, 9, 8, is_paid=True) == 7
    await job(ALICE, 9, 8, is_paid=False)
    assert await job(ALICE, 9, 8, is_paid=True) == 7


def test_names_with_unpaid_prompts_are_bounded():
    unpaid = UnpaidPrompts(most=2)
    for name in ("a", "b", "a", "c"):
        unpaid.add(name, 3)
    assert [unpaid.charge(name, 9) for name in "abc"] == [3, 9, 6]
    unpaid.add("", 3)
    assert unpaid.charge("", 9) == 9
