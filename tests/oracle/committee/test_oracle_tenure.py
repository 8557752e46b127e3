"""What the garbage collector looks at while an oracle runs: what has come since, and hardly ever everything."""

from __future__ import annotations

import gc

import pytest

from nodewire.oracle.committee.tenure import Tenure, tenured

MOST_AT_ONCE = 60_000
"""Objects that one collection looks at."""


@pytest.fixture(params=[0, 1_000_000])
def looked_at(request):
    """By collection, at how many objects it looked, in a process that has so many more already."""
    found, _already = [], [{n} for n in range(request.param)]

    def note(phase, info):
        if phase == "start":
            found.append(sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))

    with tenured():
        gc.callbacks.append(note)
        yield found
        gc.callbacks.remove(note)


def test_a_collection_looks_at_what_has_come_since_the_one_before(looked_at):
    market = [{n} for n in range(400_000)]
    assert len(market) > MOST_AT_ONCE and looked_at
    assert max(looked_at) <= MOST_AT_ONCE


def test_garbage_in_a_cycle_that_is_younger_than_a_full_collection_goes(looked_at):
    class Node:
        pass

    node = Node()
    node.itself = node
    del node
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is Node]


def test_all_is_as_before_when_the_last_oracle_ends():
    usual = gc.get_threshold()
    with tenured():
        with tenured():
            pass
        assert gc.get_threshold() != usual and gc.get_freeze_count()
    assert gc.get_threshold() == usual and not gc.get_freeze_count()


def test_everything_is_looked_at_once_when_a_process_has_grown():
    tenure = Tenure(spare_blocks=-(10**12))  # it has, whatever it holds
    try:
        tenure("stop", {"generation": 1, "collected": 0})
        assert not gc.get_freeze_count()
        gc.freeze()
        tenure("stop", {"generation": 2, "collected": 0})
        assert not gc.get_freeze_count()
        tenure("stop", {"generation": 2, "collected": 7})
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
