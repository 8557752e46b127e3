"""Pages: nobody has another's, what is given back is whole again, and lanes lie in one piece while they can."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import Busy
from nodewire.llm.kv.pages import PAGE, Pages, pages_of


def test_a_page_that_is_begun_counts():
    assert [pages_of(n) for n in (1, PAGE, PAGE + 1, 10 * PAGE)] == [1, 1, 2, 10]


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=40))
def test_pages_are_taken_once_in_one_run_if_there_is_one_and_refused_when_they_are_out(count, steps):
    pages, taken = Pages(count), []
    for takes, number in steps:
        free = {page for run in pages.free for page in run}
        if not takes and taken:
            pages.give_back(taken.pop(number % len(taken)))
        elif takes and number > len(free):
            with pytest.raises(Busy):
                pages.take(number)
            assert {page for run in pages.free for page in run} == free
        elif takes:
            has_run = any(len(run) >= number for run in pages.free)
            runs = pages.take(number)
            assert sum(map(len, runs)) == number
            assert {page for run in runs for page in run} <= free
            assert len(runs) == 1 or not has_run
            taken.append(runs)
        held = [page for runs in taken for run in runs for page in run]
        left = [page for run in pages.free for page in run]
        assert sorted(held + left) == list(range(count))
    for runs in taken:
        pages.give_back(runs)
    assert pages.free == [range(count)]
