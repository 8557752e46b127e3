"""Speculation around a ring of real actors: the same tokens as without, whatever is guessed and wherever it ends."""

import random

import pytest
import torch

from bench.decode.emulation.known_text import Knowing
from nodewire.errors import BadFrame, BadInput, NotAllowed
from nodewire.protocol.speculation.frame_meta import MAX_LOOKAHEAD
from nodewire.protocol.tensors.frame import Frame
from tests.llm.llm_models import Ring

PROMPT = [5, 77, 130, 9, 201, 44, 12]
TEXT = "the quick brown fox jumps over the lazy dog the quick brown"
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 11}


def guessing(ring, prompt, ids, right, width=1):
    """Have the driver guess what is right where `right` says so, of a text that is known."""
    text = [*prompt, *ids]
    ring.actors["driver"]._make_drafters = lambda sampler: [Knowing(text, right, 300, width)]


RIGHT = {
    "never": lambda at: False,
    "always": lambda at: True,
    "at random": lambda at: random.Random(at).random() < 0.7,
    "five, then not": lambda at: at % 6 != 0,
}


@pytest.mark.parametrize("params", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("right", RIGHT.values(), ids=RIGHT)
def test_the_same_tokens_whatever_is_guessed(ring, right, params):
    expected = ring.generate(PROMPT, max_tokens=150, **params)
    for lookahead, width in ((2, 1), (5, 1), (16, 3), (64, 4)):
        guessing(ring, PROMPT, expected[0], right, width)
        assert ring.generate(PROMPT, max_tokens=150, lookahead=lookahead, **params) == expected


@pytest.mark.parametrize("params", [{}, SAMPLED, {"temperature": 3.0, "seed": 2}], ids=["greedy", "sampled", "hot"])
def test_the_same_tokens_with_the_text_s_own_guesses(ring, params):
    for prompt in (TEXT, TEXT * 2, PROMPT, [7] * 30):
        expected = ring.generate(prompt, max_tokens=120, **params)
        assert ring.generate(prompt, max_tokens=120, lookahead=16, **params) == expected


def test_right_guesses_are_in_flight_together(ring):
    ids, _, _ = ring.generate(PROMPT, max_tokens=100)
    guessing(ring, PROMPT, ids, lambda at: True)
    ring.open("s", max_tokens=100, lookahead=8)
    driver, most = ring.actors["driver"], 0
    for _ in ring.frames("s", PROMPT):
        most = max(most, len(driver._sessions["s"].flight._sent))
    ring.close("s")
    assert most > 2


def test_what_the_customer_gets_does_not_depend_on_guesses(ring):
    def told(**params):
        ring.open("s", max_tokens=140, **params)
        found = [(f.seq, f.tensors[0].tolist(), dict(f.meta)) for f in ring.frames("s", PROMPT)]
        ring.close("s")
        return found

    plain = told()
    guessing(ring, PROMPT, [ids[0] for _, ids, _ in plain], lambda at: at % 5 != 0)
    assert told(lookahead=12) == plain


def test_without_a_lookahead_frames_are_as_ever(ring):
    ring.open("s", max_tokens=4)
    seen = []
    step = ring.step
    ring.step = lambda session, frame: seen.append(frame) or step(session, frame)
    list(ring.frames("s", PROMPT))
    sent = [(f.seq, f.tensors[0].shape[1], dict(f.meta)) for f in seen if f.edge == "hidden.0"]
    assert sent == [
        (0, 7, {"pos": 0, "chunk": 0, "tokens": 7}),
        *((n, 1, {"pos": 6 + n, "chunk": 1, "tokens": 1}) for n in (1, 2, 3)),
    ]


def test_frames_name_their_chunk_by_their_position_and_never_go_back_in_epoch(ring):
    ids, _, _ = ring.generate(PROMPT, max_tokens=140)
    guessing(ring, PROMPT, ids, lambda at: at % 9 != 0)
    ring.open("s", max_tokens=140, lookahead=20)
    seen = []
    step = ring.step
    ring.step = lambda session, frame: seen.append(frame) or step(session, frame)
    list(ring.frames("s", PROMPT))
    sent = [frame for frame in seen if frame.edge == "hidden.0"]
    assert [frame.seq for frame in sent] == list(range(len(sent)))
    epochs = [frame.meta.get("epoch", 0) for frame in sent]
    assert epochs == sorted(epochs) and epochs[-1] > 0
    for frame in sent[1:]:
        rows = frame.tensors[0].shape[1]
        assert frame.meta["chunk"] == 1 + (frame.meta["pos"] - (rows == 0) - 7) // 64
        assert frame.meta["pos"] + frame.meta["tokens"] <= 7 + 140 - 1  # the last token's row is nobody's


def test_a_stop_string_an_end_token_and_the_context_end_it_where_they_would(ring):
    _, text, _ = ring.generate(PROMPT, max_tokens=60)
    stop = next(text[i : i + 3] for i in range(12, len(text)) if "�" not in text[i : i + 3])
    expected = ring.generate(PROMPT, max_tokens=60, stop=[stop])
    long = ring.generate([3] * 250, max_tokens=1_000)
    ids = ring.generate(PROMPT, max_tokens=60)[0]
    guessing(ring, PROMPT, ids, lambda at: True)
    assert ring.generate(PROMPT, max_tokens=60, stop=[stop], lookahead=16) == expected
    for width in (1, 4):
        guessing(ring, [3] * 250, long[0], lambda at: True, width)
        assert ring.generate([3] * 250, max_tokens=1_000, lookahead=16) == long
    # A tree's branches take cells of their own, which the lane has not more of than positions.
    near = ring.generate([3] * 150, max_tokens=1_000)
    for right in (lambda at: True, lambda at: at % 3 != 0):
        guessing(ring, [3] * 150, near[0], right, 4)
        assert ring.generate([3] * 150, max_tokens=1_000, lookahead=64) == near
    driver = ring.actors["driver"]
    config = driver.program.config.model_copy(update={"eos_token_id": (ids[5],)})
    driver.program = driver.program.model_copy(update={"config": config})
    guessing(ring, PROMPT, ids, lambda at: True)
    assert ring.generate(PROMPT, max_tokens=60, lookahead=16) == ring.generate(PROMPT, max_tokens=60)
    assert ring.generate(PROMPT, max_tokens=60, lookahead=16)[2] == "eos"


def test_a_generation_that_broke_off_goes_on_from_its_history_with_guesses(ring):
    ids, whole, reason = ring.generate(TEXT, max_tokens=60)
    for cut in (1, 20, 59):
        rest, later, why = ring.generate(TEXT, history=ids[:cut], max_tokens=60 - cut, lookahead=16)
        assert (ids[:cut] + rest, why) == (ids, reason)
        assert whole.endswith(later)


def test_sessions_with_and_without_guesses_do_not_disturb_each_other(registration):
    ring, chance = Ring(registration), random.Random(3)
    expected = {"guessed": ring.generate(TEXT, max_tokens=80)[0], "plain": ring.generate(PROMPT, max_tokens=80)[0]}
    ring.open("guessed", max_tokens=80, lookahead=10)
    ring.open("plain", max_tokens=80)
    running = {"guessed": ring.frames("guessed", TEXT), "plain": ring.frames("plain", PROMPT)}
    ids = {"guessed": [], "plain": []}
    while running:
        session = chance.choice(list(running))
        frame = next(running[session], None)
        if frame is None:
            del running[session]
        else:
            ids[session] += frame.tensors[0].tolist()
    assert ids == expected


@pytest.mark.parametrize("lookahead", [0, -1, MAX_LOOKAHEAD + 1, True, 2.0, "8"])
def test_a_lookahead_that_is_none_is_refused(ring, lookahead):
    with pytest.raises(BadInput) as caught:
        ring.actors["driver"].open("s", {"lookahead": lookahead})
    assert caught.value.field == "lookahead"


def test_a_return_is_what_was_sent_or_empty_where_it_is_dead(ring):
    guessing(ring, [1, 2, 3], [0] * 50, lambda at: False)
    driver = ring.actors["driver"]
    driver.open("s", {"max_tokens": 9, "lookahead": 8})

    def back(seq, pos, rows=1):
        state = torch.randn(1, rows, 64, generator=torch.Generator().manual_seed(seq))
        return driver.receive("s", Frame("return", seq, (state,), {"pos": pos, "chunk": 0}))

    driver.receive("s", Frame("prompt", 0, (torch.tensor([1, 2, 3]),)))
    sent = [frame for frame in back(0, 2) if frame.edge == "hidden.0"]
    said = [(frame.seq, frame.meta["pos"], frame.meta["parents"], frame.meta.get("keep")) for frame in sent]
    assert said == [
        (1, 3, b"\xff\xff\0\0", None),
        (2, 4, b"\0\0\1\0", b"\0\0"),
        (3, 4, b"\2\0\3\0", None),
    ]
    for seq, pos, rows, error in ((2, 4, 1, NotAllowed), (1, 4, 2, BadFrame), (1, 3, 0, BadFrame), (1, 3, 1, BadFrame)):
        with pytest.raises(error):
            back(seq, pos, rows)
    (again, *_) = back(1, 3, rows=2)
    assert (again.seq, again.meta["pos"], again.meta["epoch"], again.meta["parents"]) == (4, 4, 1, b"\xff\xff\0\0")
    assert {frame.edge for frame in back(2, 4, rows=0)} <= {"hidden.0"}
