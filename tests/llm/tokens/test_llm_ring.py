"""Sessions on a ring: independent of each other, rewindable, bounded by slots, never broken by a bad frame."""

import random
from contextlib import suppress

import pytest
import torch

from nodewire.errors import BadFrame, BadInput, Busy, NotAllowed, NotFound, TooLarge
from nodewire.llm.tokens.sampling_params import Sampling
from nodewire.protocol.tensors.frame import Frame
from tests.llm.llm_models import Ring, hidden_frame, prompt_frame

PROMPTS = [[5, 77, 130], [9, 8, 7, 6, 5, 4, 3]]


def test_interleaved_sessions_do_not_disturb_each_other(ring, whole):
    chance = random.Random(3)
    running, ids = {}, {}
    for i, prompt in enumerate(PROMPTS):
        ring.open(str(i), max_tokens=40)
        running[str(i)], ids[str(i)] = ring.frames(str(i), prompt), []
    while running:
        session = chance.choice(list(running))
        frame = next(running[session], None)
        if frame is None:
            del running[session]
        else:
            ids[session] += frame.tensors[0].tolist()
    assert list(ids.values()) == [list(whole.tokens(prompt, Sampling(40))) for prompt in PROMPTS]


def test_a_session_beyond_the_slots_is_refused_as_busy_until_one_closes(ring):
    for actor in ring.actors.values():
        actor.open("a", {})
        actor.open("b", {})
        with pytest.raises(Busy):
            actor.open("c", {})
        with pytest.raises(NotAllowed):
            actor.open("a", {})
        actor.close("a")
        actor.close("never opened")
        actor.open("c", {})
        with pytest.raises(Busy):
            actor.open("a", {})


def test_many_short_sessions_fit_where_few_long_ones_would_and_end_where_they_said(ring, whole):
    sessions = [str(i) for i in range(4)]
    for session in sessions:  # two slots of 256 positions are eight pages
        ring.open(session, max_tokens=200, positions=100)
    for actor in ring.actors.values():
        with pytest.raises(Busy):
            actor.open("a", {"positions": 1})
    for session, prompt in zip(sessions, PROMPTS, strict=False):
        ids = [token for frame in ring.frames(session, prompt) for token in frame.tensors[0].tolist()]
        assert ids == list(whole.tokens(prompt, Sampling(100 - len(prompt))))
    with pytest.raises(TooLarge, match="prompt"):
        list(ring.frames(sessions[-1], list(range(1, 101))))
    for actor in ring.actors.values():
        for session in sessions:
            actor.close(session)
        actor.open("a", {})
        actor.open("b", {})


def test_a_lane_reused_shows_nothing_of_the_session_before(ring):
    first = ring.generate(PROMPTS[0], max_tokens=20)
    ring.generate(list(range(1, 120)), max_tokens=20)
    assert ring.generate(PROMPTS[0], max_tokens=20) == first


def test_a_frame_with_an_earlier_pos_rewinds_the_lane(ring):
    stage = ring.actors["stage.0"]
    stage.open("straight", {})
    stage.open("rewound", {})

    def out(session, *frame):
        return stage.receive(session, hidden_frame(*frame))[0].tensors[0]

    out("straight", 6, 0)
    out("rewound", 6, 0)
    for pos, seed in ((6, 9), (7, 8)):  # speculation that is rejected
        out("rewound", 1, pos, 64, seed)
    assert torch.equal(out("rewound", 1, 6), out("straight", 1, 6))
    assert torch.equal(out("rewound", 3, 4), out("straight", 3, 4))
    assert torch.equal(out("rewound", 6, 0), out("straight", 6, 0))
    with pytest.raises(BadFrame, match=r"meta\.pos"):
        out("rewound", 1, 7)  # what came after the rewind is gone


def test_a_block_after_a_cached_prefix_equals_one_prefill(ring):
    stage = ring.actors["stage.0"]
    whole = hidden_frame(90, 0)
    stage.open("s", {})
    expected = stage.receive("s", whole)[0].tensors[0]
    parts = []
    for start, end in ((0, 30), (30, 31), (31, 90)):
        part = whole.tensors[0][:, start:end].clone()
        frame = Frame("hidden.0", 0, (part,), {"pos": start, "chunk": 0})
        parts.append(stage.receive("s", frame)[0].tensors[0])
    assert (torch.cat(parts, 1) - expected).abs().max() < 1e-4


def bad(tensor=None, **meta):
    frame = hidden_frame(2, 3)
    return Frame("hidden.0", 1, frame.tensors if tensor is None else (tensor,), dict(frame.meta) | meta)


BAD_FRAMES = {
    "NaN": (bad(torch.full((1, 2, 64), float("nan"))), BadFrame),
    "infinite": (bad(torch.full((1, 2, 64), float("inf"))), BadFrame),
    "overflowing": (bad(torch.full((1, 2, 64), 3e38)), BadFrame),
    "another dtype": (bad(torch.zeros(1, 2, 64, dtype=torch.float64)), BadFrame),
    "integers": (bad(torch.zeros(1, 2, 64, dtype=torch.int64)), BadFrame),
    "another width": (bad(torch.zeros(1, 2, 63)), BadFrame),
    "another rank": (bad(torch.zeros(2, 64)), BadFrame),
    "a batch": (bad(torch.zeros(2, 2, 64)), BadFrame),
    "too many positions": (bad(torch.zeros(1, 257, 64)), BadFrame),
    "beyond the context": (hidden_frame(255, 3), TooLarge),
    "two tensors": (Frame("hidden.0", 1, (torch.zeros(1, 2, 64),) * 2, {"pos": 3, "chunk": 0}), BadFrame),
    "no tensor": (Frame("hidden.0", 1, (), {"pos": 3, "chunk": 0}), BadFrame),
    "another edge": (hidden_frame(2, 3, edge="hidden.1"), BadFrame),
    "a gap": (bad(pos=4), BadFrame),
    "a negative pos": (bad(pos=-1), BadFrame),
    "a pos that is text": (bad(pos="3"), BadFrame),
    "a pos that is a truth": (bad(pos=True), BadFrame),
    "a chunk that is none": (bad(chunk=None), BadFrame),
}


@pytest.mark.parametrize(("frame", "error"), BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_a_bad_frame_costs_a_typed_error_and_nothing_else(ring, frame, error):
    stage = ring.actors["stage.0"]
    for session in ("sound", "attacked"):
        stage.open(session, {})
        stage.receive(session, hidden_frame(3, 0))
    with pytest.raises(error):
        stage.receive("attacked", frame)
    expected = stage.receive("sound", hidden_frame(2, 3))[0].tensors[0]
    assert torch.equal(stage.receive("attacked", hidden_frame(2, 3))[0].tensors[0], expected)


def test_the_input_tensor_is_left_as_it_came(ring):
    stage = ring.actors["stage.0"]
    stage.open("s", {})
    frame = hidden_frame(70, 0)
    before = frame.tensors[0].clone()
    stage.receive("s", frame)
    assert torch.equal(frame.tensors[0], before)


def test_a_session_that_is_not_open_is_not_found(ring):
    for actor in ring.actors.values():
        with pytest.raises(NotFound):
            actor.receive("ghost", hidden_frame(2, 0))


BAD_PROMPTS = {
    "empty text": ("", BadInput),
    "no ids": ([], BadInput),
    "as long as the context": ([1] * 256, TooLarge),
    "longer than any text": ("a" * (4 * 2**20 + 1), TooLarge),
    "an id beyond the vocabulary": ([1, 100_000], BadInput),
    "a negative id": ([1, -1], BadInput),
    "a lone surrogate": ("\ud800", BadInput),
}


@pytest.mark.parametrize(("prompt", "error"), BAD_PROMPTS.values(), ids=BAD_PROMPTS)
def test_a_bad_prompt_is_refused_and_a_good_one_may_follow(ring, prompt, error):
    driver = ring.actors["driver"]
    driver.open("s", {})
    with pytest.raises(error):
        driver.receive("s", prompt_frame(prompt))
    assert driver.receive("s", prompt_frame([1, 2]))[0].edge == "hidden.0"


def test_a_text_that_cannot_fit_is_refused_before_it_is_read(ring, monkeypatch):
    """To read megabytes takes a minute with some tokenizers, and costs who sent them nothing."""
    driver = ring.actors["driver"]
    driver.open("s", {"positions": 64})
    most = 64 * driver._tokenizer.longest
    monkeypatch.setattr(driver._tokenizer, "encode", None)
    for prompt in (prompt_frame("a" * (most + 1)), prompt_frame("a" * (most + 1), history=[])):
        with pytest.raises(TooLarge, match="the session is 64") as refused:
            driver.receive("s", prompt)
        assert refused.value.field == "prompt"
    monkeypatch.undo()
    assert driver.receive("s", prompt_frame([1, 2]))[0].edge == "hidden.0"


@pytest.mark.parametrize("ids", [torch.tensor([[1, 2]]), torch.tensor([1, 2], dtype=torch.int32), torch.ones(2)])
def test_ids_of_another_type_or_rank_are_refused(ring, ids):
    driver = ring.actors["driver"]
    driver.open("s", {})
    with pytest.raises(BadFrame):
        driver.receive("s", Frame("prompt", 0, (ids,)))
    with pytest.raises(BadInput):
        driver.receive("s", Frame("prompt", 0, (), {"text": 7}))


def test_the_driver_takes_only_the_frame_that_is_awaited(ring):
    driver = ring.actors["driver"]
    driver.open("s", {"max_tokens": 2})
    state = hidden_frame(1, 0).tensors[0]

    def back(seq, pos, tensor=state):
        return driver.receive("s", Frame("return", seq, (tensor,), {"pos": pos, "chunk": 0}))

    with pytest.raises(NotAllowed):
        back(0, 0)
    driver.receive("s", prompt_frame([1, 2, 3]))
    for seq, pos, tensor, error in (
        (1, 2, state, NotAllowed),
        (0, 3, state, BadFrame),
        (0, 2, state * float("nan"), BadFrame),
        (0, 2, torch.zeros(1, 2, 64), BadFrame),
        (0, 2, torch.zeros(1, 1, 64, dtype=torch.bfloat16), BadFrame),
    ):
        with pytest.raises(error):
            back(seq, pos, tensor)
    with pytest.raises(NotAllowed):
        driver.receive("s", prompt_frame([1]))
    hidden, told = back(0, 2)
    assert (hidden.edge, hidden.seq, dict(hidden.meta)) == ("hidden.0", 1, {"pos": 3, "chunk": 1, "tokens": 1})
    assert (told.edge, told.seq, told.meta["pos"], told.meta["end"]) == ("tokens", 0, 3, False)
    (last,) = back(1, 3)
    assert (last.meta["end"], last.meta["reason"]) == (True, "length")
    with pytest.raises(NotAllowed):
        back(2, 4)


def test_every_frame_names_the_chunk_that_pays_for_it(registration):
    ring = Ring(registration)
    ring.open("s", max_tokens=140)
    seen = [(frame.seq, frame.meta["chunk"], frame.meta["pos"]) for frame in ring.frames("s", PROMPTS[0])]
    assert [chunk for _, chunk, _ in seen] == [0] + [1] * 64 + [2] * 64 + [3] * 11
    assert [pos for _, _, pos in seen] == list(range(3, 143))


def test_the_context_ends_a_session_that_asks_for_more(ring):
    ids, _, reason = ring.generate([3] * 250, max_tokens=1_000)
    assert (len(ids), reason) == (6, "length")


def test_an_end_token_ends_a_session(ring, whole):
    driver = ring.actors["driver"]
    token = ring.generate(PROMPTS[0], max_tokens=10)[0][5]
    config = driver.program.config.model_copy(update={"eos_token_id": (token,)})
    driver.program = driver.program.model_copy(update={"config": config})
    ids, text, reason = ring.generate(PROMPTS[0], max_tokens=10)
    assert reason == "eos"
    assert ids.index(token) == len(ids) - 1
    assert text == whole.tokenizer.decode(ids[:-1])


def test_a_stop_string_ends_a_session_and_is_not_printed(ring):
    _, text, _ = ring.generate(PROMPTS[0], max_tokens=60)
    stop = next(text[i : i + 3] for i in range(12, len(text)) if "\ufffd" not in text[i : i + 3])
    _, cut, reason = ring.generate(PROMPTS[0], max_tokens=60, stop=[stop])
    assert (cut, reason) == (text[: text.index(stop)], "stop")


BAD_PARAMS = [
    {"max_tokens": 0},
    {"max_tokens": 2**40},
    {"max_tokens": 1.5},
    {"max_tokens": True},
    {"temperature": -1},
    {"temperature": float("nan"), "seed": 1},
    {"temperature": float("inf"), "seed": 1},
    {"temperature": "hot", "seed": 1},
    {"temperature": 1e-9, "seed": 1},
    {"seed": None, "temperature": 1},
    {"top_p": 0},
    {"top_p": 1.1},
    {"top_p": []},
    {"seed": 2**64},
    {"stop": ""},
    {"stop": ["a"] * 9},
    {"stop": [b"a"]},
    {"stop": "a" * 129},
    {"stop": 5},
    {"best_of": 3},
]


@pytest.mark.parametrize("params", BAD_PARAMS, ids=str)
def test_an_absurd_parameter_is_refused_by_name_and_takes_no_slot(ring, params):
    driver = ring.actors["driver"]
    for _ in range(3):
        with pytest.raises(BadInput) as caught:
            driver.open("s", params)
        assert caught.value.field == next(iter(params))
    driver.open("s", {})


def test_errors_of_hostile_sessions_are_all_of_the_table(ring):
    chance = random.Random(1)
    stage = ring.actors["stage.1"]
    stage.open("s", {})
    for _ in range(100):
        shape = [chance.choice((0, 1, 2, 64)) for _ in range(chance.randrange(5))]
        dtype = chance.choice((torch.float32, torch.bfloat16, torch.int64, torch.bool))
        meta = {"pos": chance.choice((0, 1, 255, 2**60, None)), "chunk": 0}
        frame = Frame(chance.choice(("hidden.1", "x")), 0, (torch.zeros(shape, dtype=dtype),), meta)
        with suppress(BadFrame, TooLarge):
            stage.receive("s", frame)


@pytest.mark.parametrize("params", [{}, {"temperature": 0.8, "seed": 5}, {"stop": ["e"]}])
def test_a_generation_that_broke_off_goes_on_from_its_history(ring, params):
    text = "the cat sat on the mat"
    ids, whole, reason = ring.generate(text, max_tokens=40, **params)
    for cut in (1, 7, len(ids) - 1):
        rest, later, why = ring.generate(text, history=ids[:cut], max_tokens=40 - cut, **params)
        assert ids[:cut] + rest == ids
        assert whole.endswith(later)
        assert why == reason


def test_a_history_that_is_none_is_refused(ring):
    driver = ring.actors["driver"]
    for i, history in enumerate((torch.tensor([1.0]), torch.tensor([[1]]), torch.tensor([-1]), torch.tensor([10**6]))):
        driver.open(str(i), {})
        with pytest.raises((BadFrame, BadInput)):
            driver.receive(str(i), Frame("prompt", 0, (torch.tensor([65], dtype=torch.uint8), history)))
        driver.close(str(i))
    driver.open("long", {})
    with pytest.raises(TooLarge):
        history = torch.ones(10_000, dtype=torch.int64)
        driver.receive("long", Frame("prompt", 0, (torch.tensor([65], dtype=torch.uint8), history)))
    driver.close("long")
