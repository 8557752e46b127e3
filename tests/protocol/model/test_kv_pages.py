"""Room: sessions by what they take, at most as many pages as the slots have, and nobody is told that there is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import Busy
from nodewire.protocol.model.kv_pages import MAX_SHARING, PAGE, Room, pages_of


def test_a_page_that_is_begun_counts():
    assert [pages_of(n) for n in (1, PAGE, PAGE + 1, 10 * PAGE)] == [1, 1, 2, 10]


def test_many_short_sessions_fit_where_few_long_ones_do():
    room = Room(2, 8 * PAGE)
    short = [room.allocate(PAGE) for _ in range(16)]
    assert short == [1] * 16
    assert room.slots == 0
    with pytest.raises(Busy):
        room.allocate(1)
    for count in short:
        room.give(count)
    assert [room.allocate(8 * PAGE), room.allocate()] == [8, 8]
    with pytest.raises(Busy):
        room.allocate(1)


def test_a_slot_that_is_begun_counts_as_free_for_who_is_short_enough():
    room = Room(1, 4 * PAGE)
    room.allocate(PAGE)
    assert room.slots == 1
    with pytest.raises(Busy):
        room.allocate()
    assert room.allocate(3 * PAGE) == 3


def test_what_has_no_positions_takes_a_slot_whatever_it_says():
    room = Room(3, 0)
    assert [room.allocate(None), room.allocate(1), room.allocate(10**9)] == [1, 1, 1]
    with pytest.raises(Busy):
        room.allocate(None)


def test_a_slot_is_shared_by_no_more_than_a_number_of_sessions():
    room = Room(1, 1_000 * PAGE)
    for _ in range(MAX_SHARING):
        room.allocate(1)
    assert room.slots == 0
    with pytest.raises(Busy):
        room.allocate(1)


@given(st.integers(1, 5), st.integers(0, 600), st.lists(st.tuples(st.booleans(), st.integers(0, 700)), max_size=60))
def test_pages_are_never_more_than_there_are_and_all_come_back(slots, positions, steps):
    room, open_ = Room(slots, positions), []
    for takes, number in steps:
        if not takes and open_:
            room.give(open_.pop(number % len(open_)))
        elif takes:
            before = room.taken
            try:
                open_.append(room.allocate(number))
            except Busy:
                assert room.taken == before
                wanted = min(room.size, max(1, pages_of(number)))
                assert before + wanted > room.pages or len(open_) == slots * MAX_SHARING
        assert room.taken == sum(open_) <= room.pages
        assert 0 <= room.slots <= slots
    for count in open_:
        room.give(count)
    assert room.slots == slots
