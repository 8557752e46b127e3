"""Pages: nobody has another's, what is given back is whole again, and sessions fewer than the slots always fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import Busy
from nodewire.llm.kv.pages import PAGE, Pages, pages_of


def test_a_page_that_is_begun_counts():
    assert [pages_of(n) for n in (1, PAGE, PAGE + 1, 10 * PAGE)] == [1, 1, 2, 10]


@given(st.integers(1, 5), st.integers(1, 9), st.lists(st.tuples(st.booleans(), st.integers(0, 99)), max_size=50))
def test_whatever_was_taken_and_given_back_as_many_as_there_are_regions_fit(regions, size, steps):
    pages, taken = Pages(regions, size), []
    for takes, number in steps:
        if not takes and taken:
            pages.give_back(taken.pop(number % len(taken)))
        elif takes:
            count = 1 + number % size
            before = list(pages.free)
            try:
                run = pages.take(count)
            except Busy:
                assert len(taken) >= regions
                assert all(len(run) < count for run in pages.free)
                assert pages.free == before
            else:
                assert len(run) == count
                assert run.start // size == (run.stop - 1) // size
                taken.append(run)
        everything = [page for run in (*taken, *pages.free) for page in run]
        assert sorted(everything) == list(range(regions * size))
    for run in taken:
        pages.give_back(run)
    assert pages.free == [range(size * region, size * (region + 1)) for region in range(regions)]


def test_short_ones_share_a_region_before_another_is_begun():
    pages = Pages(2, 4)
    assert [pages.take(1).start for _ in range(4)] == [0, 1, 2, 3]
    assert pages.take(4) == range(4, 8)
    with pytest.raises(Busy):
        pages.take(1)
