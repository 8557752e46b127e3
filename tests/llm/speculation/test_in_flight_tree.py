"""What is in flight never changes what is said, whatever is guessed, however frames are cut and returns delayed."""

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.llm.speculation.in_flight_tree import Flight
from tests.llm.speculative_driver import FakeRing, Liar, decode, plain

PROMPT = (3, 1, 4, 1, 5)


class Guesses(NamedTuple):
    """Which are right, by position, and how many there are of each."""

    right: Callable[[int], bool]
    width: int = 1
    seed: int = 0


def run(count, guesses, *, lookahead, tree, rows=1, eager=lambda: 1, skips=True, worth=lambda *_: True):
    text = plain(PROMPT, count)
    liar = Liar([*PROMPT, *text], *guesses)
    flight = Flight(len(PROMPT), PROMPT[-1], lookahead, tree=tree, chunk=7)
    ring = FakeRing(PROMPT, count, eager, skips=skips)
    assert decode(flight, ring, PROMPT, count, liar.expand, rows=rows, worth=worth) == text
    return flight, ring


RIGHT = {
    "never": lambda at: False,
    "always": lambda at: True,
    "every second": lambda at: at % 2 == 0,
    "seven, then not": lambda at: at % 8 != 0,
}


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("right", RIGHT.values(), ids=RIGHT)
def test_thousands_of_tokens_are_those_of_plain_decoding(tree, right):
    for count, lookahead, rows in ((2_000, 3, 1), (500, 16, 4), (100, 64, 64)):
        run(count, Guesses(right, 3), lookahead=lookahead, tree=tree, rows=rows)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_pattern_of_right_and_wrong_guesses_is_lossless(data):
    pattern = data.draw(st.lists(st.booleans(), min_size=1, max_size=40))
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    run(
        data.draw(st.integers(1, 120)),
        Guesses(lambda at: pattern[at % len(pattern)], data.draw(st.integers(1, 5)), data.draw(st.integers(0, 9))),
        lookahead=data.draw(st.integers(1, 64)),
        tree=data.draw(st.booleans()),
        rows=data.draw(st.integers(1, 64)),
        eager=lambda: chance.randrange(9),
        skips=data.draw(st.booleans()),
    )


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_what_is_remembered_does_not_grow_with_the_text(tree):
    flight, ring = run(700, Guesses(lambda at: at % 5 != 0, 3), lookahead=32, tree=tree, rows=4)
    assert ring.lane.most_cells <= 2 * 32
    assert len(flight._cells) <= 2 * 32 and len(flight._sent) <= 2 * 32
    depth, node = 0, flight.head
    while node.parent is not None:
        depth, node = depth + 1, node.parent
    assert depth == 0


def test_no_more_rows_are_awaited_than_the_lookahead():
    for tree in (False, True):
        text = plain(PROMPT, 300)
        liar = Liar([*PROMPT, *text], lambda at: at % 3 != 0, 3)
        flight = Flight(len(PROMPT), PROMPT[-1], 9, tree=tree, chunk=7)
        ring = FakeRing(PROMPT, 300, lambda: 1)
        put, most = ring.put, []

        def counted(frames, put=put, most=most, flight=flight):
            most.append(sum(node.alive for sent in flight._sent for node in sent.nodes))
            put(frames)

        ring.put = counted
        decode(flight, ring, PROMPT, 300, liar.expand, rows=4)
        assert max(most) == 9


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_stages_keep_the_rows_of_a_chunk_before_they_are_sent_any_behind_it(data):
    chunk, text = data.draw(st.integers(1, 20)), plain(PROMPT, 60)
    pattern = data.draw(st.lists(st.booleans(), min_size=1, max_size=20))
    liar = Liar([*PROMPT, *text], lambda at: pattern[at % len(pattern)], 2)
    flight = Flight(len(PROMPT), PROMPT[-1], data.draw(st.integers(2, 32)), tree=True, chunk=chunk)
    ring, kept = FakeRing(PROMPT, 60, lambda: 1), [0]
    put = ring.put

    def checked(frames):
        for sent in frames:
            before, after = kept[-1], kept[-1] + len(sent.keep)
            assert sent.pos == len(PROMPT) + after
            assert (after - (not sent.nodes)) // chunk == before // chunk
            assert sent.nodes or sent.keep
            kept.append(after)
        accepted = flight.head.position - len(PROMPT)
        assert accepted // chunk * chunk <= kept[-1]
        put(frames)

    ring.put = checked
    assert decode(flight, ring, PROMPT, 60, liar.expand, rows=data.draw(st.integers(1, 9))) == text
    kept[-1] += sum(len(sent.keep) for sent in flight.last())
    assert kept[-1] == flight.head.position - len(PROMPT)


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_what_is_dead_before_it_is_computed_is_cancelled_in_band(tree):
    _, ring = run(200, Guesses(lambda at: False), lookahead=12, tree=tree, eager=lambda: 0)
    assert ring.skipped > 100


def test_a_chain_that_is_wrong_is_rewound():
    flight = Flight(len(PROMPT), PROMPT[-1], 4, tree=False, chunk=7)
    flight.returned()
    liar = Liar([*PROMPT, *plain(PROMPT, 9)], lambda at: False, 1)
    flight.accept(plain(PROMPT, 1)[0])
    flight.grow(liar.expand, lambda *_: True, 100)
    first = flight.frames(1)
    assert [(sent.seq, sent.pos, sent.epoch) for sent in first] == [(1, 5, 0), (2, 6, 0), (3, 7, 0), (4, 8, 0)]
    flight.returned()
    flight.accept(plain(PROMPT, 2)[1])
    (again,) = flight.frames(1)
    assert (again.seq, again.pos, again.epoch) == (5, 6, 1)
    assert not any(sent.awaited for sent in first)


def test_without_lookahead_frames_are_those_of_a_plain_loop():
    flight, ring = run(50, Guesses(lambda at: True), lookahead=1, tree=False)
    assert (flight._seq, flight.epoch, ring.rows) == (50, 0, 49)


def test_guesses_that_are_not_worth_it_are_not_sent():
    _, ring = run(
        100, Guesses(lambda at: True, 3), lookahead=64, tree=True, worth=lambda chance, expected, rows: chance > 0.7
    )
    assert ring.rows == 99
