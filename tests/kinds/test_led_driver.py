"""A driver that enters waits for the word of what the one before it kept of a tree, and not for ever: NIPS.md, 5.2."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace

import pytest

from kinds import k8843_guessing
from kinds.k8843_guessing import Guessing
from kinds.k8843_waiting import Inboxes, Waiting
from nodewire.errors import LinkLost
from nodewire.kind import Job, Resumed
from nodewire.protocol.frame import Array, Frame
from nodewire.protocol.guesses import packed, rows_of
from nodewire.wire.edges import RESTART
from tests.protocol import documents

PROMPT = 4
"""Positions of it."""
TREE = {"pos": PROMPT, "parents": packed((-1, 0))}


class Desk:
    """Of a driver that entered when the customer had so many tokens, and `chunk` was the first that was not closed."""

    def __init__(self, had, chunk):
        self.had, self.chunk, self.admitted = had, chunk, []

    async def resumed(self, task):
        return Resumed(RESTART, self.had, self.chunk)

    async def admit(self, chunk, units=1):
        self.admitted.append(chunk)

    def received(self, task, frame):
        pass


def back(seq, values=(), *, pos, **meta):
    """A return of what the driver before had sent; its rows are these values."""
    meta.setdefault("chunk", 1 if seq else 0)
    tensor = Array("float32", (1, len(values), 1), struct.pack(f"<{len(values)}f", *values))
    return Frame("return", seq, (tensor,), {"pos": pos, "tokens": len(values), **meta})


class Entered:
    def __init__(self, had, chunk=1):
        manifest = documents.manifest().model_copy(update={"chunk": 4})
        job = Job("cd" * 32, manifest, ("driver",), {}, lookahead=8)
        self.inboxes, self.desk = Inboxes(Waiting(), in_order_of_calls=False), Desk(had, chunk)
        self.guessing = Guessing("driver", job, self.inboxes, self.desk)

    async def given(self, frame):
        """What the driver is given of a return: (seq, position, the row's value, whether it only follows it)."""
        found, _ = await asyncio.wait_for(self.guessing.given(frame), 10)
        return [
            (one.seq, one.meta["pos"], struct.unpack("<f", next(rows_of(one.tensors[0])))[0], "replay" in one.meta)
            for one in found
        ]


async def test_a_job_whose_cells_came_back_and_whose_keep_never_does_ends_as_a_link_that_was_lost(monkeypatch):
    monkeypatch.setattr(k8843_guessing, "KEEP_S", 0.05)
    entered = Entered(had=3)
    assert await entered.given(back(0, [1], pos=PROMPT - 1)) == [(0, PROMPT - 1, 1, True)]
    with pytest.raises(LinkLost) as lost:
        await entered.given(back(1, [2, 3], **TREE))
    assert (lost.value.by, entered.desk.admitted) == ("", [0])  # nobody is blamed, nothing more is worked for


async def test_a_keep_that_comes_in_time_makes_the_cells_returns_of_accepted_positions():
    entered = Entered(had=3)
    await entered.given(back(0, [1], pos=PROMPT - 1))
    cells = asyncio.create_task(entered.given(back(1, [2, 3], **TREE)))
    await asyncio.sleep(0)
    assert not cells.done()  # it waits for the next return
    keep = back(2, pos=PROMPT + 2, keep=packed((0, 1)))
    entered.inboxes.put("driver", keep)
    assert await cells == []
    assert await entered.given(await entered.inboxes.get("driver")) == [
        (1, PROMPT, 2, True),
        (2, PROMPT + 1, 3, False),
    ]


async def test_while_rows_have_still_to_come_back_nothing_is_taken_for_lost(monkeypatch):
    """A stage that died as well computes again: it has what time that takes."""
    monkeypatch.setattr(k8843_guessing, "KEEP_S", 0.0)
    entered = Entered(had=4)
    await entered.given(back(0, [1], pos=PROMPT - 1))
    assert await entered.given(back(1, [2, 3], **TREE)) == []
    assert await entered.given(back(2, pos=PROMPT + 2, keep=packed((0, 1)))) == [
        (1, PROMPT, 2, True),
        (2, PROMPT + 1, 3, True),
    ]
    assert await entered.given(back(3, [4], pos=PROMPT + 2)) == [(3, PROMPT + 2, 4, False)]


async def test_every_return_that_is_no_keep_has_the_next_waited_for_anew(monkeypatch):
    monkeypatch.setattr(k8843_guessing, "KEEP_S", 0.05)
    entered = Entered(had=3)
    await entered.given(back(0, [1], pos=PROMPT - 1))
    frames = [back(1, [2, 3], **TREE), back(2, [9], pos=PROMPT, parents=packed((-1,)))]
    entered.inboxes.put("driver", frames[1])
    assert await entered.given(frames[0]) == []
    assert await entered.inboxes.get("driver") is frames[1]
    with pytest.raises(LinkLost):
        await entered.given(frames[1])


async def test_of_chunks_that_are_closed_it_sends_one_row_after_the_other_and_guesses_nothing():
    """Who enters with it closes them as their rows come, whether the driver has accepted them or not."""
    entered = Entered(had=2, chunk=2)
    assert await entered.given(back(0, [1], pos=PROMPT - 1)) == [(0, PROMPT - 1, 1, True)]
    returns = [back(1, [2], pos=PROMPT)]
    said = []
    for seq in (2, 3, 4):
        said += await entered.given(returns[-1])
        own = replace(back(seq, [0], pos=PROMPT + seq - 1), edge="hidden.0")
        (out,) = entered.guessing.outs(returns[-1], [own])
        assert (out.seq, out.meta["epoch"]) == (RESTART + seq - 2, RESTART)
        returns.append(back(out.seq, [seq + 1], pos=PROMPT + seq - 1, epoch=RESTART))
    assert said == [(1, PROMPT, 2, True), (2, PROMPT + 1, 3, True), (3, PROMPT + 2, 4, False)]
