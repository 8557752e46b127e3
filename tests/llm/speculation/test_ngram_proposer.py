"""Prompt lookup foretells what has been before, costs the same however long the text, and stays within its memory."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from nodewire.llm.speculation.ngram_proposer import SORTS, NgramDrafter


def told(text):
    drafter = NgramDrafter()
    for token in text:
        drafter.accept(token)
    return drafter


def ahead(drafter, count):
    """The likeliest path of that many tokens."""
    place, path = drafter.root(), []
    while len(path) < count and (found := drafter.candidates(place)):
        path.append(found[0].token)
        place = drafter.after(place, path[-1])
    return path


def test_what_followed_before_is_expected_again():
    text = [*range(100, 140), 7, 8, 9, *range(100, 110)]
    assert ahead(told(text), 20) == list(range(110, 130))


def test_text_that_repeats_itself_is_expected_to_go_on_for_ever():
    assert ahead(told([5] * 10), 50) == [5] * 50
    assert ahead(told([1, 2, 3] * 4), 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_nothing_is_said_where_nothing_came_before():
    assert ahead(told(range(50)), 5) == []
    assert ahead(told([]), 5) == ahead(told([1]), 5) == []


def test_a_longer_match_is_of_a_surer_sort_and_comes_first():
    text = [1, 2, 3, 4, 50, 9, 3, 4, 60, 8, 1, 2, 3, 4]
    first, second = told(text).candidates(told(text).root())
    assert (first.token, second.token) == (50, 60)
    assert first.prior > second.prior


def test_rivals_make_a_guess_of_another_sort():
    agreed = told([1, 2, 9, 1, 2, 9, 1, 2])
    rivals = told([1, 2, 9, 1, 2, 8, 1, 2])
    assert agreed.candidates(agreed.root())[0].sort != rivals.candidates(rivals.root())[0].sort


@given(st.lists(st.integers(0, 3), max_size=200))
def test_candidates_are_few_different_and_of_known_sorts(text):
    drafter = told(text)
    place = drafter.root()
    for _ in range(5):
        found = drafter.candidates(place)
        assert len({candidate.token for candidate in found}) == len(found) <= 3
        assert all(0 <= c.sort < SORTS and 0 < c.prior < 1 for c in found)
        if not found:
            break
        # Whatever is said has followed one of the last two tokens' earlier occurrences, or goes on with a repetition.
        assert {c.token for c in found} <= set(text)
        place = drafter.after(place, found[-1].token)


def test_a_token_takes_little_memory_and_no_lookup_visits_many_places():
    drafter = NgramDrafter()
    empty = sys.getsizeof(drafter._last)
    visited = []
    for position in range(4_000):
        drafter.accept(position % 2)
        visited.append(len(drafter.root()))
    assert empty == sys.getsizeof(drafter._last) < 2**17
    assert sys.getsizeof(drafter._tokens) + sys.getsizeof(drafter._before) < 10 * 4_000
    assert max(visited) <= 16
