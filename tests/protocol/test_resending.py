"""Frames over which guesses travelled, sent again: a ring whose stages die, beside what all of them must compute."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import LinkLost
from nodewire.llm.speculation.flight import Flight
from nodewire.protocol.guesses import Fences, is_computed, packed, rows_of, step_of, without_rows
from nodewire.protocol.history import History
from tests.protocol.test_history import CHUNK, PROMPT, Model, begun, frame, prompt, speculated

LOOKAHEAD = 8


def numbers(tensor):
    return [int(struct.unpack("<2f", one)[0]) for one in rows_of(tensor)]


@cache
def made(stage, way):
    """What a stage makes of a row: all that led to it counts."""
    return 1 + crc32(repr((stage, way)).encode()) % 2**23


def test_what_is_void_is_counted_to_its_own_chunk_when_it_is_sent_again():
    """Else a driver that dies could have an honest stage send more than a chunk may have."""
    producer = begun(lookahead=2)
    producer.take(frame(1, 3, [1, 2]))
    producer.take(frame(2, 5, [3, 4]))
    for seq in range(3, 73):
        producer.take(frame(seq, 7, [seq], epoch=seq))
    for seq in range(73, 141):
        producer.take(frame(seq, 3, [seq], epoch=seq))
    entering = History("hidden", chunk=CHUNK, lookahead=2)
    for one in producer.again(0, lambda seq: iter(())):
        entering.take(one)
    assert entering.last_seq == producer.last_seq
    assert entering._counted == {1: 68 + 2, 2: 70}


def test_nothing_follows_cells_that_had_other_numbers_whatever_stands_between():
    consumer = begun()
    consumer.take(frame(1, 3, [1, 2], parents=[-1, -1]))
    consumer.take(frame(2, 3, [], again=True))
    with pytest.raises(LinkLost):
        consumer.take(frame(3, 4, [], chunk=1, keep=[0], again=True))


def test_a_chain_behind_what_it_keeps_is_sent_again_as_a_chain():
    """Else an entering stage would never have the rows of a chunk that all others have closed."""
    producer = begun()
    producer.take(frame(1, 3, [1, 2], parents=[-1, -1]))
    producer.take(frame(2, 4, [3, 4, 5, 6], keep=[1]))
    producer.take(frame(3, 8, [7]))
    producer.close(0)
    kept = [prompt(), *producer.close(1)]
    producer.take(frame(4, 7, []))  # makes the last row of frame 2 void, behind the cut
    entering = History("hidden", chunk=CHUNK, lookahead=LOOKAHEAD)
    for one in producer.again(0, lambda seq: (plain for plain in kept if plain.seq >= seq)):
        entering.take(one)
    entering.close(0)
    assert [numbers(one.tensors[0]) for one in entering.close(1)] == [[2], [3], [4], [5]]


def test_a_chain_that_makes_a_tree_void_and_is_void_itself_ends_the_job():
    """Without its rows nobody could tell that it did; with zeros for them a chunk might be closed that has them."""
    producer = begun()
    producer.take(frame(1, 3, [1, 2], parents=[-1, -1]))
    producer.take(frame(2, 3, [3]))
    producer.take(frame(3, 3, []))
    producer.take(frame(4, 3, [4, 5], parents=[-1, -1]))
    with pytest.raises(LinkLost):
        list(producer.again(0, lambda seq: iter(())))


def test_void_rows_behind_kept_cells_are_left_out():
    """Zeros in their place would fill the chunk before what counts has come, and whoever enters might close it so."""
    producer = begun()
    producer.take(frame(1, 3, [1, 2], parents=[-1, -1]))
    producer.take(frame(2, 4, [3, 4, 5], keep=[0]))
    producer.take(frame(3, 5, [6, 7]))
    again = list(producer.again(0, lambda seq: iter([prompt()])))
    assert [numbers(one.tensors[0]) for one in again[1:]] == [[1, 0], [3], [6, 7]]


@pytest.mark.parametrize("rows", [{"values": []}, {"values": [3], "parents": [-1]}])
def test_cells_that_were_kept_and_are_void_end_the_job(rows):
    producer = begun()
    producer.take(frame(1, 3, [1, 2], parents=[-1, -1]))
    producer.take(frame(2, 4, rows["values"], chunk=1, keep=[0], parents=rows.get("parents")))
    producer.take(frame(3, 3, []))
    with pytest.raises(LinkLost):
        list(producer.again(0, lambda seq: iter([prompt()])))


def test_of_cells_that_were_kept_those_that_are_void_are_left_out_and_so_is_what_stood_on_them():
    """A driver that enters begins behind what its customer has, which is less than the other had kept."""
    producer = begun()
    producer.take(frame(1, 3, [8], parents=[-1]))
    producer.take(frame(2, 3, [1, 2, 3, 4], epoch=1, parents=[-1, 0, 1, 0]))
    producer.take(frame(3, 6, [5], epoch=1, keep=[0, 1, 2], parents=[-1]))
    producer.take(frame(4, 7, [], epoch=1, chunk=1, keep=[0]))
    producer.take(frame(2**32, 5, [6, 7], epoch=2**32))
    entering = History("hidden", chunk=CHUNK, lookahead=LOOKAHEAD)
    came = []
    for one in producer.again(0, lambda seq: iter([prompt()])):
        entering.take(one)
        came.append((one.meta["pos"], numbers(one.tensors[0]), one.meta.get("keep"), entering.lacks(1)))
    assert came[2:] == [
        (3, [1, 2, 0, 0], None, True),
        (5, [], packed((0, 1)), True),
        (6, [], None, True),
        (5, [6, 7], None, False),
    ]
    entering.close(0)
    assert [numbers(one.tensors[0]) for one in entering.close(1)] == [[1], [2], [6], [7]]


def test_rows_of_closed_positions_that_came_again_one_by_one_are_sent_again_as_those_that_they_are():
    """A customer may lack more than one of the tokens of a chunk that stages have closed when its driver dies."""
    producer = begun()
    producer.take(frame(1, 3, [1, 2, 3, 4, 5, 6]))
    kept = [one for chunk in range(2) for one in producer.close(chunk)]
    for seq, number in enumerate([3, 4, 15, 16, 17, 18, 19]):
        producer.take(frame(2**32 + seq, 5 + seq, [number], epoch=2**32))
    for _ in range(2):  # the second time all but the last are settled
        again = producer.again(0, lambda first, kept=tuple(kept): (one for one in kept if one.seq >= first))
        came = [(one.meta["pos"], numbers(one.tensors[0])) for one in again]
        assert came[1:] == [(3, [1, 2, 3, 4]), *((5 + i, [n]) for i, n in enumerate([3, 4, 15, 16, 17, 18, 19]))]
        kept += producer.close(2) if producer.closed == 1 else []


class Edge:
    """Its frames as they came, and what is kept of them."""

    def __init__(self):
        self.history, self.raw, self.kept = History("hidden", chunk=CHUNK, lookahead=LOOKAHEAD), {}, []

    def take(self, one):
        self.history.take(one)
        self.raw[one.seq] = one

    def plain(self, seq):
        return iter([one for one in self.kept if one.seq >= seq])


class Stage:
    """It takes frames in, as they are sent to it, and puts out what it makes of them."""

    def __init__(self, number, before, had=-1):
        self.number, self.before, self.had = number, before, had
        self.came, self.made, self.waiting, self.fences, self.model = Edge(), Edge(), deque(), Fences(), Model()
        self.sent = -1
        self.reading = before.history.again(0, before.plain)

    def send(self):
        """One more frame gets here, if there is one."""
        one = next(self.reading, None) if self.reading is not None else self.before.raw.get(self.sent + 1)
        if one is None:
            self.reading = None
            return False
        assert one.seq == self.sent + 1
        self.sent = one.seq
        self.fences.note(one)
        self.waiting.append(one)
        return True

    def lose(self, before, sent):
        """The link is another: what waits here has come."""
        self.before, self.reading = before, before.history.again(sent + 1, before.plain)

    def step(self):
        if not self.waiting:
            return False
        one = self.waiting.popleft()
        self.came.take(one)
        is_void = one.seq and (not is_computed(one) or self.fences.void(one))
        out = without_rows("hidden", one, "float32") if is_void else self.computed(one)
        self.made.take(replace(out, meta={**out.meta, "again": True}) if one.meta.get("again") else out)
        return True

    def computed(self, one):
        if one.seq == 0:
            return one
        step, came, model = step_of(one, LOOKAHEAD), numbers(one.tensors[0]), self.model
        fresh = not step.keep and (step.epoch > self.epoch or step.pos < PROMPT + len(model.run))
        if step.parents is None:
            model.take(step.pos, came, None, list(step.keep), fresh)
            outs = [made(self.number, tuple(model.run[: step.pos - PROMPT + i + 1])) for i in range(step.rows)]
        else:
            model.take(step.pos, came, step.parents, list(step.keep), fresh)
            outs = [made(self.number, (*model.run, *way)) for way in model.live[len(model.live) - step.rows :]]
        self.epoch = step.epoch
        meta = {"parents": step.parents if step.rows else None, "keep": step.keep or None, "epoch": step.epoch}
        return frame(step.seq, step.pos, outs, chunk=step.chunk, **meta)

    epoch = 0

    def close(self, wanted):
        while (chunk := self.made.history.closed + 1) <= wanted:
            both = self.came.history, self.made.history
            if any(one.lacks(chunk) for one in both) or both[0].came_in(chunk) != both[1].came_in(chunk):
                return
            for edge in (self.came, self.made):
                edge.kept += edge.history.close(chunk)


class Ring:
    def __init__(self, stages=3):
        self.hidden, self.wanted, self.stages = Edge(), -1, []
        for number in range(stages):
            self.stages.append(Stage(number, self.stages[-1].made if number else self.hidden))
        self.hidden.take(prompt())

    @property
    def returned(self):
        return self.stages[-1].made

    def close(self):
        while (chunk := self.hidden.history.closed + 1) <= self.wanted and not self.hidden.history.lacks(chunk):
            self.hidden.kept += self.hidden.history.close(chunk)
        for stage in self.stages:
            stage.close(self.wanted)

    def kill(self, number):
        entered = Stage(number, self.stages[number].before)
        self.stages[number] = entered
        entered.close(self.wanted)
        if number + 1 < len(self.stages):
            after = self.stages[number + 1]
            if after.came.history.is_torn:
                raise LinkLost("hidden", "gone while a tree of guesses was sent again")
            after.before, after.reading = entered.made, None
        return entered

    def move(self, draw):
        """Something, somewhere."""
        stage = self.stages[draw(len(self.stages))]
        for _ in range(1 + draw(6)):
            (stage.send if draw(2) else stage.step)()
        self.close()

    def settle(self):
        while any(stage.send() or stage.step() for stage in self.stages):
            self.close()
        self.close()

    def check(self):
        """All edges have what follows from what the driver said."""
        rows = [numbers(one.tensors[0])[0] for one in self.hidden.kept[1:]]
        for stage in self.stages:
            assert [numbers(one.tensors[0])[0] for one in stage.came.kept[1:]] == rows
            rows = [made(stage.number, tuple(rows[: i + 1])) for i in range(len(rows))]
            assert [numbers(one.tensors[0])[0] for one in stage.made.kept[1:]] == rows


@dataclass
class Guess:
    token: int
    odds: float


class Driver:
    """The model's own, around a ring that dies: `right` of a hundred guesses are. It compares what comes back."""

    def __init__(self, ring, random, right, tree, tokens=30):
        self.ring, self.random, self.right, self.tokens, self.had = ring, random, right, tokens, 0
        self.flight = Flight(PROMPT, 1, LOOKAHEAD, tree=tree, chunk=CHUNK)
        self.sent, self.run, self.is_over = {}, [], False

    def truth(self, position):
        return 1 + position * 7 % 101

    def expand(self, node):
        right = self.truth(node.position + 1)
        first = right if self.random.randrange(100) < self.right else right + 1
        return [Guess(first, 0.8), Guess(first + 2 if first != right else right + 1, 0.2)]

    def receive(self):
        one = self.ring.returned.raw.get(self.had)
        sent = self.flight.awaited
        if one is None or sent is None:
            return False
        step = step_of(one, LOOKAHEAD)
        assert one.seq == 0 or step.answers(self.sent[one.seq])
        self.had += 1
        rows = numbers(one.tensors[0])
        assert rows or not sent.awaited
        for i, node in enumerate(sent.nodes):
            if node is self.flight.head and not self.is_over:
                if one.seq:
                    self.run.append(node.token)
                    assert rows[i] == self.back(), f"{one.seq}: row {i}"
                self.flight.accept(self.truth(node.position + 1))
                self.ring.wanted = max(self.ring.wanted, len(self.run) // CHUNK)
                self.is_over = len(self.run) >= self.tokens
        self.flight.returned()
        self.ring.close()
        if self.is_over:
            self.flight.drop()
            self.put(self.flight.last())
            return True
        self.flight.grow(self.expand, lambda *_: True, PROMPT + self.tokens, 2**40)
        self.put(self.flight.frames(1 + self.random.randrange(LOOKAHEAD)))
        return True

    def back(self):
        rows = self.run
        for stage in range(len(self.ring.stages)):
            rows = [made(stage, tuple(rows[: i + 1])) for i in range(len(rows))]
        return rows[-1]

    def put(self, frames):
        for one in frames:
            rows = [node.token for node in one.nodes]
            chunk = 1 + (one.pos - (not rows) - PROMPT) // CHUNK
            parents = one.parents if rows else None
            out = frame(one.seq, one.pos, rows, epoch=one.epoch, parents=parents, keep=one.keep or None, chunk=chunk)
            self.sent[one.seq] = step_of(out, LOOKAHEAD)
            self.ring.hidden.take(out)


@pytest.mark.parametrize("tree", [False, True])
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 30, 60, 90, 100]))
def test_whatever_stage_dies_whenever_all_goes_on_as_if_nobody_had(tree, seed, right):
    ring, random = Ring(), Random(seed)
    driver = Driver(ring, random, right, tree)
    deaths = [random.randrange(400) for _ in range(4)]
    at = 0
    try:
        while not driver.is_over and at < 4000:
            ring.move(random.randrange)
            if random.randrange(2):
                driver.receive()
            if at in deaths:
                ring.kill(random.randrange(3))
            at += 1
        ring.settle()
        while driver.receive():
            ring.settle()
    except LinkLost:  # in the midst of what an earlier death had sent again
        assert tree and sum(death <= at for death in deaths) > 1
        return
    ring.settle()
    assert driver.is_over
    ring.check()
    assert len(ring.returned.kept) > driver.tokens - CHUNK


@settings(max_examples=300, deadline=None)
@given(speculated(), st.integers(0, 2**32))
def test_whatever_a_driver_sends_nobody_who_is_honest_is_refused_when_a_stage_dies(events, seed):
    """Where it cannot be sent again the job begins anew."""
    ring, random = Ring(), Random(seed)
    ring.settle()
    ring.wanted = 0
    ring.close()
    try:
        for one, close in events:
            if one is not None:
                ring.hidden.take(one)
            else:
                came = max(ring.hidden.history.came_in(close[0]))
                while ring.returned.history.last_seq < came:
                    ring.move(random.randrange)
                ring.wanted = close[0]
            for _ in range(random.randrange(4)):
                ring.move(random.randrange)
            if random.randrange(8) == 0:
                ring.kill(random.randrange(3))
        ring.settle()
    except LinkLost:
        return
    ring.check()
    assert ring.returned.history.closed == ring.hidden.history.closed


def die_in_replays(ring, random, driver):
    strikes = sorted(random.sample(range(1, 7), 2))
    for _ in range(6000):
        ring.move(random.randrange)
        if random.randrange(2):
            driver.receive()
        if strikes and (newest := ring.hidden.history.last_seq) >= strikes[0]:
            strikes.pop(0)
            stage = ring.kill(random.randrange(3))
            for _ in range(3):
                for _ in range(random.randrange(2 * newest)):
                    (stage.send if random.randrange(2) else stage.step)()
                    if random.randrange(4) == 0:
                        driver.receive()  # it may close a chunk meanwhile
                    ring.close()
                assert stage.made.history.last_seq < newest
                stage = ring.kill((stage.number + random.randrange(-1, 2)) % 3)
        if driver.is_over:
            break


@pytest.mark.parametrize("tree", [False, True])
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([30, 60, 90]))
def test_whoever_enters_may_die_in_its_replay_and_so_may_those_beside_it(tree, seed, right):
    """Each death but the first is in the midst of the replay before it: of who entered, or of its neighbour."""
    ring, random = Ring(), Random(seed)
    driver = Driver(ring, random, right, tree)
    try:
        die_in_replays(ring, random, driver)
        ring.settle()
        while driver.receive():
            ring.settle()
    except LinkLost:
        assert tree  # some have come, which others would number otherwise
        return
    ring.settle()
    assert driver.is_over
    ring.check()


def test_cells_that_others_number_otherwise_end_the_job_and_a_chain_does_not():
    """One that lacks some of what is sent again is sent the rest by another, who leaves out what was void later."""
    stays = begun(lookahead=4)
    stays.take(frame(1, 3, [1, 2], parents=[-1, -1]))
    with pytest.raises(LinkLost):
        stays.take(marked(frame(2, 4, [3], parents=[-1], keep=[0])))
    assert stays.last_seq == 1
    entered = begun(lookahead=4)
    entered.take(marked(frame(1, 3, [2], parents=[-1])))
    assert entered.is_torn
    entered.take(frame(2, 4, [3], parents=[-1], keep=[0]))
    assert not entered.is_torn
    chain = begun(lookahead=4)
    chain.take(frame(1, 3, [1]))
    chain.take(marked(frame(2, 4, [2])))
    assert chain.last_seq == 2


def marked(one):
    return replace(one, meta={**one.meta, "again": True})
