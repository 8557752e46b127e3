"""Whose prompts a stage looks among is the provider's word; what it found stays between the two."""

from types import SimpleNamespace

from nodewire.protocol.tensors.frame import Frame
from nodewire.provider.tasks.prefix_cache import FoundPrompts, whose

ALICE, BOB = "aa" * 32, "bb" * 32
ENGINES = {"driver": "decoder.driver", "stage.0": "decoder.stage", "stage.1": "decoder.stage"}
MANIFEST = SimpleNamespace(
    chunk=64, tasks=[SimpleNamespace(name=name, engine=engine) for name, engine in ENGINES.items()]
)


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


def test_stages_alone_are_told_whose_prompts_they_are():
    for name in (ALICE, ""):
        found = FoundPrompts(MANIFEST, name)
        told = {task: found.params(task, {"max_tokens": 5}) for task in ENGINES}
        of_stages = {"max_tokens": 5} | ({"prefixes": ALICE} if name else {})
        assert told == {"driver": {"max_tokens": 5}, "stage.0": of_stages, "stage.1": of_stages}


def test_what_counts_is_what_every_stage_had_found_and_nobody_else_hears_of_it():
    found = FoundPrompts(MANIFEST, ALICE)
    (out,) = found.noted("stage.0", [answer(192)])
    assert out.meta == {"pos": 0, "chunk": 0}
    assert (found.units(["stage.0"]), found.units(["stage.0", "stage.1"]), found.units(["driver"])) == (3, 0, 0)
    found.noted("stage.1", [answer(64)])
    found.noted("stage.1", [answer(100)])
    assert found.units(list(ENGINES)) == 2  # a unit that is found in part is computed
    assert [found.cached(list(ENGINES), units) for units in (1, 3)] == [1, 2]
