"""Pages: nobody has another's, what is given back is whole again, and who finds enough of them free gets them."""

import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import Busy
from nodewire.llm.kv.page_allocator import Pages
from nodewire.llm.kv.sequence_cache import Lanes
from nodewire.protocol.model.kv_pages import PAGE
from nodewire.worker.sandbox.rights import private_bytes

CONFIG = SimpleNamespace(sides=2, num_key_value_heads=2, head_dim=4, short_positions=lambda positions: 0)


@given(st.integers(1, 30), st.lists(st.tuples(st.booleans(), st.integers(0, 99)), max_size=50))
def test_runs_are_nobody_elses_and_all_come_back(size, steps):
    pages, taken = Pages(size), []
    for takes, number in steps:
        if not takes and taken:
            pages.give_back(taken.pop(number % len(taken)))
        elif takes:
            count = 1 + number % size
            before = list(pages.free)
            try:
                run = pages.allocate(count)
            except Busy:
                assert count > pages.free_count
                run = None
            if run is None:
                assert all(len(run) < count for run in pages.free)
                assert pages.free == before
            else:
                assert len(run) == count
                taken.append(run)
        everything = [page for run in (*taken, *pages.free) for page in run]
        assert sorted(everything) == list(range(size))
    for run in taken:
        pages.give_back(run)
    assert pages.free == [range(size)]


def test_the_smallest_run_that_is_large_enough_is_taken():
    pages = Pages(9)
    runs = [pages.allocate(n) for n in (2, 1, 3, 1, 2)]
    for run in (runs[0], runs[2], runs[4]):
        pages.give_back(run)
    assert pages.allocate(2) == runs[0]
    assert pages.allocate(3) == runs[2]


@given(st.integers(1, 4), st.lists(st.tuples(st.booleans(), st.integers(0, 99)), max_size=30))
def test_who_finds_enough_pages_free_gets_them_and_everybody_elses_stay_what_they_were(slots, steps):
    """Lanes are moved together where they must be: each is marked, in every layer, and keeps its mark."""
    size = 5
    lanes = Lanes(CONFIG, 2, slots, size * PAGE, torch.float32, torch.device("cpu"))
    marks, mark = {}, 0.0
    for takes, number in steps:
        if not takes and marks:
            lane = list(marks)[number % len(marks)]
            lanes.close(lane)
            del marks[lane]
        elif takes:
            count = 1 + number % size
            free = slots * size - sum(len(lane.pages) for lane in marks)
            if count > free:
                with pytest.raises(Busy):
                    lanes.open(PAGE * count)
                continue
            lane, mark = lanes.open(PAGE * count), mark + 1
            marks[lane] = mark
            rows = torch.full((PAGE * count, CONFIG.num_key_value_heads, CONFIG.head_dim), mark)
            rows += torch.arange(PAGE * count)[:, None, None] / 1024
            for layer in range(2):
                lane.write(layer, 0, rows + 100 * layer, -rows - 100 * layer)
        pages = [page for lane in marks for page in lane.pages]
        assert len(set(pages)) == len(pages)
        for lane, mine in marks.items():
            for layer in range(2):
                keys, values = lane.read(layer, 0, PAGE * len(lane.pages))
                expected = mine + 100 * layer + torch.arange(keys.shape[1])[None, :, None] / 1024
                assert torch.equal(keys, expected.expand_as(keys))
                assert torch.equal(values, -keys)


def test_lanes_count_at_once_and_take_memory_as_they_are_written():
    config = SimpleNamespace(sides=2, num_key_value_heads=2, head_dim=256, short_positions=lambda positions: 0)
    counted, taken = private_bytes(), resident_bytes()
    lanes = Lanes(config, 2, 4, 128 * PAGE, torch.float32, torch.device("cpu"))
    size = sum(cells.nbytes for cells in lanes.cells)
    assert size >= 2**26
    assert private_bytes() - counted >= size
    assert resident_bytes() - taken < size / 8
    for cells in lanes.cells:
        assert not cells.any()
        cells.fill_(1)
    assert resident_bytes() - taken >= size


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
