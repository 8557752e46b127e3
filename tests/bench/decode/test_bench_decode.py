"""Drivers that `bench.decode` compares: whatever they guess, their tokens are the decoder's."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.decode.emulation.arms import Prompt
from bench.decode.emulation.cells import Cells, Sent, is_dead
from bench.decode.emulation.drivers import driver_of
from bench.decode.emulation.node import array_of, meta_of, rows_of, sent_of
from bench.decode.emulation.stage import Moving, Stage, times
from bench.decode.emulation.truth import SHARES, Scripted, Truth, mixed
from bench.decode.emulation.virtual import Run, alone, simulate, turn_ms
from nodewire.protocol.tensors.frame import Frame

TOKENS = 80
small = st.integers(1, 9)
wholly_computed = st.one_of(
    st.just({"arm": "plain"}),
    st.fixed_dictionaries({"arm": st.just("synchronous"), "k": small}),
    st.fixed_dictionaries({"arm": st.just("overlapping"), "k": small, "depth": st.integers(1, 40)}),
)
arms = st.one_of(wholly_computed, st.fixed_dictionaries({"arm": st.just("ours"), "lookahead": st.integers(1, 256)}))
truths = st.fixed_dictionaries({"seed": st.integers(0, 2**40), "alpha": st.floats(0.0, 1.0)})


def ran(arm, tokens=TOKENS, stage_ms=3.0, **how):
    driver, truth = driver_of(arm)
    run = Run(driver, tokens)
    simulate([run], stage_ms, **how)
    return run, truth


@settings(max_examples=50, deadline=None)
@given(arms, truths, st.sampled_from([0.0, 1.0, 10.0]))
def test_every_arms_tokens_are_the_decoders(arm, drawn, stage_ms):
    run, truth = ran({**arm, **drawn}, stage_ms=stage_ms)
    assert len(run.driver.tokens) >= TOKENS
    assert run.driver.tokens == truth.tokens(len(run.driver.tokens))


@settings(max_examples=10, deadline=None)
@given(st.lists(arms, min_size=2, max_size=6), truths)
def test_sessions_that_are_computed_together_do_not_disturb_each_other(several, drawn):
    made = [driver_of({**arm, **drawn, "seed": drawn["seed"] + number}) for number, arm in enumerate(several)]
    runs = [Run(driver, 40, begins_ms=7.0 * number) for number, (driver, _) in enumerate(made)]
    simulate(runs, 5.0, batches=True)
    for driver, truth in made:
        assert driver.tokens == truth.tokens(len(driver.tokens))


@settings(max_examples=20, deadline=None)
@given(wholly_computed, truths, st.booleans())
def test_a_session_alone_takes_as_long_by_the_short_way_to_reckon(arm, drawn, relayed):
    run, _ = ran({**arm, **drawn}, relayed=relayed)
    driver, _ = driver_of({**arm, **drawn}, stages=1)
    other = Run(driver, TOKENS)
    alone(other, 3.0, relayed=relayed)
    assert other.came_ms == pytest.approx(run.came_ms)


@pytest.mark.parametrize("relayed", [False, True])
def test_plain_decoding_makes_a_token_a_turn(relayed):
    run, _ = ran({"arm": "plain", "seed": 1, "alpha": 0.5}, relayed=relayed)
    assert run.per_s == pytest.approx(1_000 / turn_ms(3.0, relayed=relayed))


@pytest.mark.parametrize("k", [1, 4, 16])
def test_synchronous_speculation_makes_what_its_formula_says(k):
    alpha, stage_ms = 0.8, 3.0
    run, _ = ran({"arm": "synchronous", "seed": 5, "alpha": alpha, "k": k}, 4_000, stage_ms)
    expected = (1 - alpha ** (k + 1)) / (1 - alpha) / turn_ms(stage_ms * times(k + 1)) * 1_000
    assert run.per_s == pytest.approx(expected, rel=0.05)


def test_guesses_in_flight_are_ahead_of_a_chain_at_its_best():
    alpha, stage_ms = 0.8, 3.0
    run, _ = ran({"arm": "ours", "seed": 5, "alpha": alpha, "lookahead": 128}, 2_000, stage_ms)
    turn_s = turn_ms(stage_ms) / 1_000
    assert run.per_s > 1.1 / ((1 - alpha) * turn_s + alpha * stage_ms / 1_000)


def test_a_drafter_is_right_as_often_as_it_is_told():
    truth, count = Truth(3, 0.7), 20_000
    ranks = Counter(truth.rank(pos) for pos in range(1, count))
    for rank, chance in enumerate((0.7, *(0.3 * share for share in SHARES))):
        assert ranks[rank] / count == pytest.approx(chance, abs=0.01)
    node = Scripted.begin(truth)
    for pos in range(1, 50):
        guessed = [token for token, _ in node.guesses]
        assert len(set(guessed)) == len(guessed)
        assert (guessed.index(truth.token(pos)) if truth.token(pos) in guessed else None) == truth.rank(pos)
        wrong = node.then(next(token for token in guessed if token != truth.token(pos)))
        assert truth.token(pos + 1) not in [token for token, _ in wrong.guesses]
        node = node.then(truth.token(pos))


def test_kept_cells_join_the_run_and_what_does_not_follow_them_is_void():
    tree, plain = Cells(), Cells()
    a, b, c, d = tree.rows(Sent(0, 0, (), parents=(-1, 0, 0, 1)), [10, 11, 12, 13])
    assert (a, b, d) == tuple(plain.rows(Sent(0, 0, ()), [10, 11, 13]))
    assert c == mixed(12, a)
    [e] = tree.rows(Sent(1, 2, (), parents=(0,), keep=(0, 1)), [14])  # live cell 0 now is d
    assert [e] == plain.rows(Sent(1, 3, ()), [14])
    assert tree.run == [a, b]
    assert [y for y, _ in tree.live] == [d, e]


@pytest.mark.parametrize(
    "frame",
    [
        Sent(1, 3, (), parents=(-1,)),
        Sent(1, 1, (), parents=(7,)),
        Sent(1, 2, (), parents=(-1,), keep=(1,)),
    ],
)
def test_frames_that_fit_nothing_are_refused(frame):
    cells = Cells()
    cells.rows(Sent(0, 0, ()), [1])
    cells.rows(Sent(1, 1, (), parents=(-1, 0)), [2, 3])
    with pytest.raises(ValueError, match=r"\d"):
        cells.rows(frame, [4])


def test_only_what_a_later_epoch_voids_wholly_is_dead():
    frame = Sent(4, 10, (1,), epoch=1)
    assert is_dead(frame, [Sent(5, 10, (2,), epoch=2)])
    assert not is_dead(frame, [Sent(5, 11, (2,), epoch=2)])
    assert not is_dead(frame, [Sent(5, 9, (2,), epoch=1)])


def test_a_dead_frame_goes_on_empty_and_takes_no_time():
    stage = Stage(3.0)
    for sent in (Sent(0, 0, (1, 2)), Sent(1, 2, (3,)), Sent(2, 1, (4,), epoch=1)):
        stage.come(Moving(0, sent, sent.tokens))
    took, rows = [], []
    while (ms := stage.begin()) is not None:
        took.append(ms)
        rows += [len(moving.xs) for moving in stage.end()]
    assert rows == [2, 0, 1]
    assert took == [3.0 * times(2), 0.0, 3.0]


def test_a_forward_of_more_rows_takes_as_long_as_was_measured():
    assert [times(rows) for rows in (1, 8, 32)] == pytest.approx([1.0, 1.45, 2.6])
    assert times(8) < times(9) < times(10)


def test_a_prompt_enters_block_by_block():
    prompt = Prompt(10, 4)
    assert [(sent.pos, len(sent.tokens)) for sent in prompt.start(0.0)] == [(0, 4), (4, 4), (8, 2)]


@given(
    st.lists(st.integers(0, 2**61 - 2), max_size=5),
    st.builds(
        Sent,
        st.integers(0, 2**40),
        st.integers(0, 2**40),
        st.just(()),
        st.integers(0, 2**20),
        st.none() | st.lists(st.integers(-1, 2**15 - 1)).map(tuple),
    ),
)
def test_frames_travel_whole(xs, sent):
    frame = Frame("edge.0", sent.seq, (array_of(xs),), meta_of(sent))
    frame.tensors[0].check(2**20)
    assert rows_of(frame) == tuple(xs)
    assert sent_of(frame) == sent
