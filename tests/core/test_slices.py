"""Long work on an event loop: others have their turn between slices, and the result is the same."""

from __future__ import annotations

import asyncio

import pytest

from nodewire.core import loop_turn
from nodewire.core.loop_turn import LoopTurn, in_slices
from nodewire.core.slices import whole


def count(to):
    for _ in range(to):
        yield
    return to


class Ticking:
    """A loop's clock that goes on by a part of a slice with each look."""

    def __init__(self, monkeypatch, parts):
        self.now_s = 0.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", self.time)
        self.step_s = loop_turn.SLICE_S / parts

    def time(self):
        self.now_s += self.step_s
        return self.now_s


def test_work_gives_its_result_without_a_pause():
    assert whole(count(5)) == 5


async def test_others_have_their_turn_after_each_slice(monkeypatch):
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    Ticking(monkeypatch, parts=10)
    assert await in_slices(count(8_000)) == 8_000
    beside.cancel()
    assert 80 <= turns <= 120


async def test_short_works_share_one_turn(monkeypatch):
    Ticking(monkeypatch, parts=10)
    turn, given_up = LoopTurn(), 0

    async def give_up():
        nonlocal given_up
        given_up += 1

    monkeypatch.setattr(turn, "give_up", give_up)
    for _ in range(5):
        await in_slices(count(8), turn)
    assert not given_up
    for _ in range(10):
        await in_slices(count(8), turn)
    assert given_up


async def test_an_error_of_the_work_is_its_drivers():
    def failing():
        yield
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="middle"):
        await in_slices(failing())
    with pytest.raises(ValueError, match="middle"):
        whole(failing())
