"""A dictionary that forgets its oldest entry."""

from hypothesis import given
from hypothesis import strategies as st

from nodewire.core.bounded_dict import BoundedDict


def filled(most, *keys):
    made = BoundedDict(most)
    for key in keys:
        made[key] = key.upper()
    return made


def test_of_too_many_entries_the_oldest_goes():
    assert dict(filled(2, "a", "b", "c")) == {"b": "B", "c": "C"}


def test_an_entry_that_is_set_again_keeps_its_age():
    assert [*filled(2, "a", "b", "a", "c")] == ["b", "c"]


def test_an_entry_that_is_renewed_is_the_youngest():
    made = filled(2, "a", "b")
    made.move_to_end("a")
    made["c"] = "C"
    assert [*made] == ["a", "c"]


def test_no_way_in_leads_past_the_bound():
    made = filled(2, "a", "b")
    made.update({"c": "C", "d": "D"})
    assert made.setdefault("e", "E") == "E"
    made |= {"f": "F"}
    assert [*made] == ["e", "f"]


def test_of_none_nothing_is_kept():
    assert not filled(0, "a")


@given(st.integers(0, 4), st.lists(st.tuples(st.sampled_from(["set", "pop"]), st.sampled_from("abcdef"))))
def test_it_holds_what_a_plain_dictionary_would_that_drops_its_first_entries(most, steps):
    made, plain = BoundedDict(most), {}
    for step, key in steps:
        if step == "set":
            made[key] = plain[key] = len(plain)
            while len(plain) > most:
                del plain[next(iter(plain))]
        else:
            assert made.pop(key, None) == plain.pop(key, None)
        assert [*made.items()] == [*plain.items()]
