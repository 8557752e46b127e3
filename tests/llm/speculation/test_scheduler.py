"""The scheduler sends what pays, by what it has measured, and nothing where nothing does."""

import random

import pytest

from bench.decode.emulation.known_text import Knowing
from nodewire.llm.speculation.acceptance_rate import Odds
from nodewire.llm.speculation.in_flight_tree import Flight, InFlightFrame, Node
from nodewire.llm.speculation.ring_times import Pace
from nodewire.llm.speculation.scheduler import DraftScheduler
from tests.llm.speculative_driver import rate


def test_odds_begin_at_the_prior_and_go_where_the_guesses_go():
    odds = Odds()
    assert odds.estimate(3, 0.6) == pytest.approx(0.6)
    for _ in range(300):
        odds.learn(3, 0.6, False)
    assert odds.estimate(3, 0.6) < 0.05
    for _ in range(300):
        odds.learn(3, 0.6, True)
    assert odds.estimate(3, 0.6) > 0.9
    assert odds.estimate(4, 0.2) == pytest.approx(0.2)


def frame(seq, rows):
    return InFlightFrame(seq, 0, 0, tuple(Node(0, 0) for _ in range(rows)))


def timed(turn, row, gap, noise=0.0, rows=(1, 4, 16, 32)):
    """A pace that has seen bursts of two frames on a ring with those times."""
    pace, now, chance = Pace(), 0, random.Random(2)
    for turns in range(200):
        burst = [frame(2 * turns, rows[turns % len(rows)]), frame(2 * turns + 1, rows[turns % len(rows)])]
        pace.sent(burst, now)
        extra = row * (len(burst[0].nodes) - 1) + chance.uniform(-noise, noise)
        pace.returned(burst[0], int(now + turn + extra))
        now = int(now + turn + extra + (gap(len(burst[1].nodes)) if callable(gap) else gap))
        pace.returned(burst[1], now)
    return pace


def test_a_turn_and_what_a_row_and_a_frame_add_are_told_apart():
    pace = timed(150e6, 0.5e6, 3e6, noise=1e6)
    assert pace.turn_ns == pytest.approx(150e6, rel=0.02)
    assert pace.row * pace.turn_ns == pytest.approx(0.5e6, rel=0.2)
    assert pace.window(1) == pytest.approx(0.8 * 50, rel=0.2)


@pytest.mark.parametrize(("row", "width"), [(0.0, 16), (0.5e6, 7), (3e6, 2)])
def test_frames_are_as_wide_as_rows_are_cheap_and_as_many_as_a_turn_has_room_for(row, width):
    pace = timed(150e6, 6 * row, lambda rows: 3e6 + row * (rows - 1))
    assert pace.width(512) == width
    turn, gap = 150e6 + 6 * row * (width - 1), 3e6 + row * (width - 1)
    assert pace.window(width) == pytest.approx(0.8 * turn / gap, rel=0.1)


def test_before_anything_is_measured_frames_leave_some_for_those_behind_them():
    assert [Pace().width(lookahead) for lookahead in (1, 8, 32, 128)] == [1, 2, 4, 8]
    assert Pace().window(4) == 3


def test_the_first_prompt_and_skipped_frames_are_not_measured():
    pace = Pace()
    pace.returned(frame(0, 1), 10**9)
    assert pace.turn_ns == 0
    dead = frame(1, 4)
    for node in dead.nodes:
        node.alive = False
    pace.sent([dead], 0)
    pace.returned(dead, 5)
    assert pace.turn_ns == 0


def late(right, *, row, turns=300, lookahead=32):
    """(frames, rows) for the last third of so many tokens, on a ring where a row costs `row` of a turn."""
    text = [random.Random(4).randrange(50) for _ in range(turns + 100)]
    now = 0
    scheduler = DraftScheduler([Knowing([*text], right, 50)], clock_ns=lambda: now)
    flight = Flight(1, text[0], lookahead, tree=True, chunk=2**40)
    scheduler.accept(text[0])
    count, found = 0, [0, 0]
    queue = [flight.awaited]
    while count < turns:
        sent = queue.pop(0)
        now += int(100e6 * (1 + row * (len(sent.nodes) - 1)))
        scheduler.returned(sent)
        for node in sent.nodes:
            if node is flight.head:
                count += 1
                scheduler.accept(text[count], node.guesses)
                flight.accept(text[count])
        flight.returned()
        flight.grow(scheduler.expand, scheduler.worth, 10**6, scheduler.room(flight))
        frames = flight.frames(scheduler.width)
        scheduler.sent(frames)
        queue += frames
        if count > turns * 2 // 3:
            found[0] += len(frames)
            found[1] += sum(len(one.nodes) for one in frames)
    return found


def test_nothing_is_guessed_where_guesses_are_never_right():
    frames, rows = late(lambda at: False, row=0.02)
    assert 95 <= frames <= rows <= 110  # heads, and next to nothing else


def test_a_drafter_that_becomes_good_is_heard_again():
    frames, _ = late(lambda at: at > 100, row=0.02, lookahead=8)
    assert frames <= 25


def test_the_dearer_a_row_the_fewer_are_sent():
    dear, cheap = (late(lambda at: at % 3 != 0, row=row)[1] for row in (0.4, 0.001))
    assert dear < cheap


RINGS = {
    "one host, slow stages": {"turn_s": 0.0125, "stage_s": 0.003, "row_s": 0.0002, "stages": 4},
    "far apart": {"turn_s": 0.158, "stage_s": 0.003, "row_s": 0.0002, "stages": 6},
    "far apart, rows are dear": {"turn_s": 0.158, "stage_s": 0.003, "row_s": 0.001, "stages": 6},
}
MISSES = (0.40, 0.15, 0.08, 0.04)
"""How often the token is of ranks 2 to 5, of the times that it is not of the first."""


def ranks(acceptance, count, *, siblings):
    chance = random.Random(1)
    weights = [acceptance, *((1 - acceptance) * share * siblings for share in MISSES)]
    return chance.choices([0, 1, 2, 3, 4, None], [*weights, 1 - sum(weights)], k=count)


@pytest.mark.parametrize("ring", RINGS.values(), ids=RINGS)
def test_guesses_that_are_never_right_cost_next_to_nothing(ring):
    assert rate(ranks(0.0, 500, siblings=False), **ring, lookahead=64, count=400) * ring["turn_s"] > 0.97


@pytest.mark.parametrize("acceptance", [0.5, 0.7, 0.8, 0.9])
def test_a_ring_far_apart_is_as_fast_as_its_acceptance_allows(acceptance):
    ring = RINGS["far apart"]
    chain = 1 / ((1 - acceptance) * ring["turn_s"] + acceptance * ring["stage_s"])
    alone, wide = (
        rate(ranks(acceptance, 700, siblings=siblings), **ring, lookahead=64, count=600) for siblings in (False, True)
    )
    assert alone > 0.8 * chain  # nothing but one chain of guesses, and what tokens in flight make of it at best
    assert wide > alone
    assert wide > chain * (1.1 if acceptance < 0.9 else 0.9)
