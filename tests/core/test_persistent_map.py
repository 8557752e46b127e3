"""A persistent map holds what a dictionary holds, and what was there before stays as it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodewire.core.persistent_map import PersistentMap

STEPS = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.none() | st.integers()))


@given(STEPS)
def test_a_persistent_map_is_a_dictionary_that_no_step_changes(steps):
    history = [(PersistentMap[int](), dict[str, int]())]
    for key, value in steps:
        new, old = history[-1]
        if value is None:
            history.append((new.without(key), {k: v for k, v in old.items() if k != key}))
        else:
            history.append((new.including(key, value), {**old, key: value}))
    for new, old in history:
        assert dict(new) == old
        assert len(new) == len(old)
        assert PersistentMap(old) == new
