"""Dominators are what removing nodes says they are; forks and colours part what can run at the same time."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nodewire.graph.cut import colour
from nodewire.graph.cut.dominators import ROOT, branches, immediate_dominators, main_line


@st.composite
def graphs(draw):
    """Predecessors of each node, all under it."""
    count = draw(st.integers(1, 9))
    return [sorted(draw(st.sets(st.integers(0, v - 1), max_size=3))) if v else [] for v in range(count)]


def reached(before, without):
    """Nodes with a path from a first one that avoids `without`."""
    found = set()
    for v, sources in enumerate(before):
        if v != without and (not sources or found.intersection(sources)):
            found.add(v)
    return found


def dominating(before, v):
    return {u for u in range(len(before)) if u != v and v not in reached(before, u)}


@given(graphs())
def test_an_immediate_dominator_is_the_last_of_the_nodes_without_which_there_is_no_path(before):
    parent = immediate_dominators(before)
    for v in range(len(before)):
        assert parent[v] == max(dominating(before, v), default=ROOT)


@given(graphs())
def test_every_path_passes_the_main_line_and_no_edge_joins_two_branches_beside_it(before):
    ends = [v for v in range(len(before)) if all(v not in sources for sources in before)]
    line = main_line(before)
    assert line == sorted(dominating([*before, ends], len(before)))
    bounds = [-1, *line, len(before)]
    for first, end in pairwise(bounds):
        parts = branches(before, first + 1, end)
        assert sorted(v for part in parts for v in part) == list(range(first + 1, end))
        for v in range(first + 1, end):
            own = next(part for part in parts if v in part)
            assert all(u in own or u <= first for u in before[v])


def grouped(colours, edges, heavy):
    users = [[w for v, w in edges if v == u] for u in range(len(colours))]
    return colour.groups(colours, users, heavy)


def test_two_towers_and_what_joins_them_are_three_groups():
    colours = [0b001, 0b010, 0b110, 0b111]
    edges = [(0, 3), (1, 2), (2, 3)]
    assert grouped(colours, edges, {0b001: True, 0b010: True, 0b110: True, 0b111: False}) == [[0], [1, 2], [3]]


def test_a_light_branch_stays_with_the_one_that_uses_it():
    colours = [0b001, 0b010, 0b011]
    edges = [(0, 2), (1, 2)]
    assert grouped(colours, edges, {0b001: True, 0b010: False, 0b011: True}) == [[0, 1, 2]]
    light = {0b001: True, 0b010: True, 0b100: False, 0b111: True}
    assert grouped([0b001, 0b010, 0b100, 0b111], [(0, 3), (1, 3), (2, 3)], light) == [[0], [1], [2, 3]]


def test_what_depends_on_more_inputs_later_is_no_branch():
    assert grouped([0b01, 0b11], [(0, 1)], {0b01: True, 0b11: True}) == [[0, 1]]


@given(graphs(), st.data())
def test_groups_never_depend_on_each_other_in_a_circle(before, data):
    bits = data.draw(st.lists(st.integers(0, 7), min_size=len(before), max_size=len(before)))
    for v, sources in enumerate(before):
        for u in sources:
            bits[v] |= bits[u]
    heavy = {own: data.draw(st.booleans()) for own in sorted(set(bits))}
    edges = [(u, v) for v, sources in enumerate(before) for u in sources]
    found = grouped(bits, edges, heavy)
    place = {v: k for k, group in enumerate(found) for v in group}
    assert sorted(place) == list(range(len(before)))
    assert all(place[u] <= place[v] for u, v in edges)
