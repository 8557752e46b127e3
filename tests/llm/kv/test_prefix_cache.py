"""What is kept of prompts: the same bits as computed once more, nobody else's, and never in the way of a session."""

from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodewire.errors import BadFrame, BadInput, Busy
from nodewire.llm.stage import Stage
from nodewire.protocol.model.kv_pages import PAGE
from nodewire.protocol.tensors.frame import Frame
from tests.llm.llm_lanes import frame, whole_stage

CONTEXT, SLOTS = 4 * PAGE, 2
SYSTEM = [n * 7 % 50 for n in range(PAGE)]
PROMPT = SYSTEM + [n * 11 % 50 for n in range(PAGE)] + [3, 1, 4]


@pytest.fixture(scope="module", params=[False, True], ids=["hidden states go on", "the last layers"])
def stages(request, plain, tmp_path_factory) -> tuple[Stage, Stage]:
    """Two of the same layers, and all of those that come before in another (of no interest)."""
    out = tmp_path_factory.mktemp("stages")
    found = [whole_stage(plain, out, slots=SLOTS, context=CONTEXT) for _ in range(2)]
    if not request.param:
        for stage in found:  # as a stage that is followed by others
            stage.program = stage.program.model_copy(update={"closes": False})
    return found[0], found[1]


def page(tokens, pos) -> Frame:
    return frame(tokens, pos, seq=0)


def pages(tokens):
    return [page(tokens[at : at + PAGE], at) for at in range(0, len(tokens), PAGE)]


def said(stage: Stage, session: str, frames) -> tuple[list[torch.Tensor], list[int]]:
    """What a stage answers, and how much of each frame it had found."""
    answers = [stage.receive(session, one)[0] for one in frames]
    return [one.tensors[0] for one in answers], [one.meta.get("cached", 0) for one in answers]


def assert_same(one, other) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


def prompted(stage: Stage, tokens, whose: str, decode=(5, 6)) -> tuple[list[torch.Tensor], list[int]]:
    """A whole session: the prompt, then rows one by one."""
    params = {"positions": len(tokens) + len(decode)} | ({"prefixes": whose} if whose else {})
    stage.open("s", params)
    try:
        following = [frame([token], len(tokens) + i, seq=1 + i) for i, token in enumerate(decode)]
        return said(stage, "s", [*pages(tokens), *following])
    finally:
        stage.close("s")


def test_a_second_prompt_that_begins_alike_computes_what_is_new_and_says_the_same_bit_by_bit(stages):
    stage, again = stages
    first, cached = prompted(stage, PROMPT, "mia")
    assert sum(cached) == 0
    second, cached = prompted(stage, PROMPT, "mia")
    assert cached == [PAGE, PAGE, 0, 0, 0]
    assert_same(second, first)
    longer = SYSTEM + [9] * PAGE + [8] * 10
    third, cached = prompted(stage, longer, "mia")
    assert cached == [PAGE, 0, 0, 0, 0]
    assert_same(third, prompted(again, longer, "")[0])


def test_nobody_finds_what_is_anothers_nor_what_nobody_is_to_keep(stages):
    stage, _ = stages
    prompted(stage, PROMPT, "nat")
    for whose in ("", "nat2", "na", "mallory"):
        assert sum(prompted(stage, PROMPT, whose)[1]) == 0
    prompted(stage, [1] * PAGE, "")
    assert sum(prompted(stage, [1] * PAGE, "nat")[1]) == 0
    for bad in (5, b"nat", "x" * 201, ["nat"]):
        with pytest.raises(BadInput, match="prefixes"):
            stage.open("bad", {"prefixes": bad})


def test_a_page_is_found_only_after_those_that_came_before_it_and_in_its_place(stages):
    stage, again = stages
    prompted(stage, PROMPT, "oda")
    other = [2] * PAGE + PROMPT[PAGE : 2 * PAGE]
    found, cached = prompted(stage, other, "oda")
    assert sum(cached) == 0
    assert_same(found, prompted(again, other, "")[0])


def test_a_driver_that_goes_back_amid_a_prompt_finds_nothing_more(stages):
    """Else what it put into the lane meanwhile would be kept under the name of what it did not overwrite."""
    stage, again = stages
    for one, whose in ((stage, "pia"), (again, "")):
        one.open("s", {"prefixes": whose} if whose else {})
    first, *rest = pages(PROMPT)
    frames = [first, frame([7], 0, seq=1), frame([7] * (PAGE - 1), 1, seq=2), *rest]
    results = [said(one, "s", frames) for one in (stage, again)]
    assert_same(results[0][0], results[1][0])
    for one in (stage, again):
        one.close("s")
    assert prompted(stage, PROMPT, "pia")[1] == [PAGE, 0, 0, 0, 0]


def test_a_frame_that_is_refused_leaves_nothing_that_is_found(stages):
    stage, again = stages
    stage.open("s", {"prefixes": "quinn"})
    said(stage, "s", pages(SYSTEM))
    bad = page(PROMPT[PAGE : 2 * PAGE], PAGE)
    bad.tensors[0][0, 5, 5] = torch.nan
    with pytest.raises(BadFrame):
        stage.receive("s", bad)
    with pytest.raises(BadFrame):
        stage.receive("s", page(SYSTEM, 3 * PAGE))
    found, _ = said(stage, "s", pages(PROMPT)[1:])
    stage.close("s")
    assert_same(found, prompted(again, PROMPT, "", ())[0][1:])


def test_what_is_kept_takes_no_room_that_a_session_could_have(stages):
    stage, again = stages
    for n in range(6):
        prompted(stage, [n] * (2 * PAGE), "rosa")
    assert len(stage._prefixes) > 0
    for session in ("a", "b"):
        stage.open(session, {"prefixes": "rosa"})
    with pytest.raises(Busy):
        stage.open("c", {"positions": 1})
    assert len(stage._prefixes) == 0
    found, cached = said(stage, "a", pages(PROMPT))  # there is no room, and nothing is kept
    assert sum(cached) == 0
    assert_same(found, prompted(again, PROMPT, "", ())[0])
    for session in ("a", "b"):
        stage.close(session)
    assert sum(map(len, stage._lanes.free)) == SLOTS * CONTEXT // PAGE


def test_who_cannot_have_room_takes_nothing_from_what_is_kept(stages):
    stage, _ = stages
    prompted(stage, SYSTEM, "sue")
    stage.open("a", {"positions": PAGE})
    stage.open("b", {"positions": CONTEXT})
    before = len(stage._prefixes)
    assert before > 0
    with pytest.raises(Busy):
        stage.open("c", {"positions": CONTEXT})
    assert len(stage._prefixes) == before
    stage.open("c", {"positions": CONTEXT - PAGE})
    assert len(stage._prefixes) == 0
    for session in ("a", "b", "c"):
        stage.close(session)
    assert sum(map(len, stage._lanes.free)) == SLOTS * CONTEXT // PAGE


def test_what_was_used_longest_ago_is_given_up_first_and_its_end_before_its_beginning(stages):
    """Eight pages in all, of which a kept one takes two."""
    stage, _ = stages
    for session in ("x", "y"):
        stage.open(session, {})  # whatever was kept before is given up
    for session in ("x", "y"):
        stage.close(session)
    prompted(stage, [4] * PAGE, "tom", ())
    prompted(stage, [5] * (2 * PAGE), "tom", ())
    prompted(stage, [4] * PAGE, "tom", ())
    prompted(stage, [6] * PAGE, "tom", ())  # for which one has to go
    assert len(stage._prefixes) == 3
    for token in (4, 5, 6):
        assert prompted(stage, [token] * PAGE, "tom", ())[1] == [PAGE]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 25))
def test_whatever_sessions_come_and_go_answers_are_what_is_computed_without_any_of_it(stages, seed, steps):
    """Sessions of two customers, with rewinds, beside each other: every answer as of a stage that forgets."""
    stage, again = stages
    chance = Random(seed)
    live: dict[str, list[int]] = {}
    try:
        for n in range(steps):
            does = chance.choice(("open", "open", "row", "row", "rewind", "close"))
            if does == "open":
                tokens = [SYSTEM, [2] * PAGE][chance.randrange(2)] + [chance.randrange(3)] * chance.choice((0, 5, PAGE))
                most = min(CONTEXT, len(tokens) + chance.choice((1, 20, 100)))
                session = f"s{n}"
                try:
                    stage.open(session, {"positions": most, "prefixes": chance.choice(("una", "vic", "una"))})
                except Busy:
                    free = SLOTS * CONTEXT // PAGE - sum(len(one.lane.pages) for one in stage._sessions.values())
                    assert free < -(-most // PAGE)
                    continue
                live[session] = tokens
                assert_same(said(stage, session, pages(tokens))[0], prompted(again, tokens, "", ())[0])
            elif live:
                session = chance.choice(list(live))
                if does == "close":
                    stage.close(session)
                    del live[session]
                    continue
                tokens = live[session]
                if does == "rewind":
                    del tokens[chance.randrange(1, len(tokens)) :]
                tokens.append(chance.randrange(50))
                if len(tokens) > stage._sessions[session].lane.positions:
                    tokens.pop()
                    continue
                (answer,) = stage.receive(session, frame(tokens[-1:], len(tokens) - 1, seq=1))
                again.open("s", {})
                straight = said(again, "s", pages(tokens))[0][-1]
                again.close("s")
                made = answer.tensors[0][0, -1]
                assert (made - straight[0, -1]).abs().max() <= 1e-5 * straight.abs().max()
    finally:
        for session in live:
            stage.close(session)
    held = [page for kept in stage._prefixes._kept.values() for page in kept.pages]
    free = [page for run in stage._lanes.free for page in run]
    assert sorted(held + free) == list(range(SLOTS * CONTEXT // PAGE))
