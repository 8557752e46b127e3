"""A round's close: what it must say, and that what it draws is the same for everybody."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from nodewire.errors import BadEvent, BadTag, NotAllowed
from nodewire.nostr.keys import Keys
from nodewire.protocol.encoding import random_draw
from nodewire.training.engine import draw
from nodewire.training.protocol import audit, round_close
from nodewire.training.protocol.audit import MAX_SNAPSHOTS
from nodewire.training.protocol.round_close import Close, CountedResult
from tests.kinds.digits import RECIPE

KEYS = Keys.generate()
JOB, REQUEST, ADA, BEA, ROOT = (f"{n:02x}" * 32 for n in range(1, 6))


def counted(provider: str = ADA, **changes) -> CountedResult:
    fields = {"request": REQUEST, "provider": provider, "index": 0, "result": "0a" * 32, "commitment": ROOT}
    return CountedResult(**{**fields, **changes})


def close(*results: CountedResult) -> Close:
    return Close(job=JOB, round=3, nonce="0c" * 32, results=results or (counted(),))


def test_a_close_is_read_as_it_was_written():
    made = close(counted(BEA, index=1), counted(doubted=True))
    event = round_close.build(KEYS, 8840, made, created_at=1)
    closed = round_close.parse(event)
    assert (closed.id, closed.customer, closed.close) == (event.id, KEYS.public, made)
    assert closed.close.find_result(REQUEST, BEA).index == 1
    assert closed.close.find_result(JOB, BEA) is None


def test_the_largest_close_is_an_event():
    results = [counted(f"{n:064x}", request=f"{n:064x}", index=4000 + n) for n in range(round_close.MAX_COUNTED)]
    made = close(*results).model_copy(update={"others": ("ee" * 32,) * round_close.MAX_OTHERS})
    event = round_close.build(KEYS, 8840, made, created_at=2_000_000_000)
    assert round_close.parse(event).close == made
    assert len(event.to_json()) < 65_536


def test_a_close_that_is_none_is_refused():
    event = round_close.build(KEYS, 8840, close(), created_at=1)
    with pytest.raises(BadTag):
        round_close.parse(replace(event, tags=(("e", REQUEST), ("p", BEA))))
    for kind in ("8842", "8843", "x"):
        with pytest.raises(BadTag, match="k"):
            round_close.parse(replace(event, tags=(("e", REQUEST), ("p", ADA), ("k", kind))))
    with pytest.raises(BadEvent):
        round_close.parse(replace(event, kind=8856))
    with pytest.raises(BadEvent, match="twice"):
        round_close.parse(
            replace(event, content=event.content.replace('"results":[', f'"results":[{counted().to_json()},'))
        )


@pytest.mark.parametrize(
    ("kind", "snapshots", "tag"), [(8842, (1, 2), "k"), (8840, (2, 1), "snapshots"), (8841, (1, 1), "snapshots")]
)
def test_a_question_for_snapshots_is_of_a_round_and_in_order(kind, snapshots, tag):
    assert audit.parse(audit.ask(KEYS, 8841, REQUEST, ADA, ROOT, (1, 2), created_at=1)).snapshots == (1, 2)
    with pytest.raises(BadTag, match=tag):
        audit.parse(audit.ask(KEYS, kind, REQUEST, ADA, ROOT, snapshots, created_at=1))


@pytest.mark.parametrize("segments", [1, 2, 34, 384])
def test_what_is_drawn_is_the_order_of_the_streams_words(segments):
    seed, root = "0d" * 32, "0e" * 32
    order = draw.order(segments, "segments", seed, root)
    many = max(1, int(segments * 0.15))
    assert random_draw.draw(seed, root, segments, 0.15, 64) == tuple(sorted(int(i) for i in order[:many]))


def test_every_segment_is_drawn_as_often_as_any_other():
    hits = Counter(one for i in range(2_000) for one in random_draw.draw(f"{i:064x}", "00" * 32, 10, 0.2, 64))
    assert set(hits) == set(range(10)) and all(330 < hit < 470 for hit in hits.values())


def test_of_a_doubted_result_four_times_as_much_is_drawn_and_its_end():
    recipe = RECIPE.model_copy(update={"audit": RECIPE.audit.model_copy(update={"segment": 1, "fraction": "0.1"})})
    closed = round_close.parse(
        round_close.build(KEYS, 8840, close(counted(), counted(BEA, doubted=True)), created_at=1)
    )
    few, many = (round_close.drawn(closed, one, recipe, 20) for one in closed.close.results)
    assert len(few) == 2
    assert len(many) in (8, 9) and many[-1] == 19
    all_of_it = recipe.model_copy(update={"audit": recipe.audit.model_copy(update={"fraction": "1.0"})})
    for one in closed.close.results:
        assert len(round_close.ends(round_close.drawn(closed, one, all_of_it, 384))) <= MAX_SNAPSHOTS


@pytest.mark.parametrize("count", [64, 98, 103, 384])
def test_as_many_are_drawn_as_can_be_shown_and_no_fewer(count):
    recipe = RECIPE.model_copy(update={"audit": RECIPE.audit.model_copy(update={"segment": 1, "fraction": "1.0"})})
    closed = round_close.parse(round_close.build(KEYS, 8840, close(), created_at=1))
    assert len(round_close.drawn(closed, closed.close.results[0], recipe, count)) == round_close.MAX_DRAWN


def test_both_ends_of_a_segment_are_shown_and_none_before_the_first():
    assert round_close.ends((0, 3, 4)) == (0, 2, 3, 4)


@pytest.mark.parametrize(
    "changes",
    [{"job": BEA}, {"customer": BEA}, {"request": BEA}, {"provider": BEA}, {"commitment": BEA}, {"commitment": None}],
)
def test_nothing_is_shown_for_a_close_of_something_else(changes):
    closed = round_close.parse(round_close.build(KEYS, 8840, close(), created_at=1))
    fields = {"job": JOB, "customer": KEYS.public, "request": REQUEST, "provider": ADA, "commitment": ROOT}
    assert round_close.check_asked(closed, **fields) == counted()
    with pytest.raises(NotAllowed, match="close"):
        round_close.check_asked(closed, **{**fields, **changes})
