"""What changes a session's tokens: bounds on what is drawn from, penalties, biases, schemas, log-probabilities."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor

from nodewire.errors import BadInput
from nodewire.llm.tokens.sampler import MAX_TOLD_BYTES, Sampler
from nodewire.llm.tokens.sampling_params import Sampling, _uniform, choose, parse_params, ranked

PROMPT = [5, 77, 130, 9, 201, 44, 12]
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 11}
BENT = {
    "repetition": {"repetition_penalty": 1.3},
    "presence and frequency": {"presence_penalty": 0.8, "frequency_penalty": "0.4"},
    "biased": {"logit_bias": {"7": 20, "12": -100}},
    "all, sampled": SAMPLED
    | {"top_k": 30, "min_p": "0.01", "repetition_penalty": 1.2, "presence_penalty": -0.5, "logit_bias": {9: 2.5}},
}


def as_before(logits, sampling, pos):
    """`choose` as it was before there was anything but temperature and top_p."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    probabilities, tokens = (logits.cpu().double() / sampling.temperature).softmax(0).sort(descending=True, stable=True)
    cumulative = probabilities.cumsum(0)
    kept = int((cumulative < sampling.top_p).sum()) + 1
    point = _uniform(sampling.seed, pos) * float(cumulative[min(kept, len(cumulative)) - 1])
    index = int(torch.searchsorted(cumulative, point, right=True))
    return int(tokens[min(index, len(tokens) - 1)])


@given(
    st.integers(0, 2**32),
    st.integers(1, 400),
    st.sampled_from([0.0, 0.2, 1.0, 5.0]),
    st.floats(0.01, 1.0),
    st.integers(0, 99),
)
def test_what_was_chosen_before_is_chosen_still(noise, vocabulary, temperature, top_p, pos):
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(noise)) * 4
    sampling = Sampling(1, temperature, top_p, seed=noise)
    assert choose(logits, sampling, pos) == as_before(logits, sampling, pos)


PROBABILITIES = torch.tensor([0.05, 0.4, 0.25, 0.2, 0.1])


def drawn(**params):
    sampling = Sampling(1, temperature=1.0, seed=5, **params)
    return {choose(PROBABILITIES.log(), sampling, pos) for pos in range(400)}


def test_top_k_and_min_p_keep_what_they_say():
    assert drawn(top_k=1) == {1}
    assert drawn(top_k=3) == {1, 2, 3}
    assert drawn(top_k=99) == drawn(min_p=0.1) == {0, 1, 2, 3, 4}
    assert drawn(min_p=0.45) == {1, 2, 3}
    assert drawn(min_p=1.0) == {1}
    # Of the three likeliest (0.85 in all) the two first are 0.76.
    assert drawn(top_k=3, top_p=0.75) == {1, 2}
    assert drawn(top_k=3, top_p=0.77) == {1, 2, 3}


def test_a_token_whose_logit_is_infinitely_small_is_never_drawn():
    logits = torch.tensor([0.0, -torch.inf, -torch.inf, 0.0])
    for temperature in (0.0, 1.0, 50.0):
        sampling = Sampling(1, temperature=temperature, seed=1)
        assert {choose(logits, sampling, pos) for pos in range(200)} <= {0, 3}


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.8]), st.integers(1, 5))
def test_the_first_of_a_ranking_is_what_is_chosen(noise, temperature, most):
    logits = torch.randn(50, generator=torch.Generator().manual_seed(noise))
    sampling = Sampling(1, temperature, 0.9, seed=noise)
    found = ranked(logits, sampling, 3, most)
    assert found[0] == choose(logits, sampling, 3)
    assert len(set(found)) == len(found) <= most


def test_the_repetition_penalty_is_transformers():
    logits = torch.randn(50)
    sampler = Sampler(Sampling(1, repetition_penalty=1.7), 50)
    sampler.begin(torch.tensor([3, 4, 4]))
    sampler.accept(9)
    theirs = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.7)])(torch.tensor([[3, 4, 4, 9]]), logits[None])
    assert torch.equal(sampler.bent(logits), theirs[0])
    path = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.7)])(torch.tensor([[3, 4, 9, 8]]), logits[None])
    assert torch.equal(sampler.bent(logits, [8]), path[0])
    assert torch.equal(sampler.bent(logits), theirs[0])  # a path is only thought of


def test_presence_and_frequency_are_taken_from_what_was_generated():
    sampler = Sampler(Sampling(1, presence_penalty=0.5, frequency_penalty=0.25), 5)
    sampler.begin(torch.tensor([0, 0]))
    for token in (1, 2, 2):
        sampler.accept(token)
    assert sampler.bent(torch.zeros(5)).tolist() == [0, -0.75, -1.0, 0, 0]
    assert sampler.bent(torch.zeros(5), [2, 3]).tolist() == [0, -0.75, -1.25, -0.75, 0]


@pytest.mark.parametrize("params", BENT.values(), ids=BENT)
def test_ring_and_reference_say_the_same_with_and_without_guesses(ring, whole, params):
    expected = ring.generate(PROMPT, max_tokens=100, **params)
    assert expected[0] != ring.generate(PROMPT, max_tokens=100)[0]
    assert list(whole.tokens(PROMPT, parse_params({"max_tokens": 100, **params}, 256))) == expected[0]
    assert ring.generate(PROMPT, max_tokens=100, lookahead=12, **params) == expected


@pytest.mark.parametrize("params", BENT.values(), ids=BENT)
def test_a_history_counts_as_generated(ring, params):
    text = "the cat sat on the mat"
    ids = ring.generate(text, max_tokens=40, **params)[0]
    assert ids[:20] + ring.generate(text, history=ids[:20], max_tokens=20, **params)[0] == ids


def test_log_probabilities_are_the_model_s_own(ring, whole):
    ring.open("s", max_tokens=12, logprobs=3, logit_bias={"7": 100})
    told = list(ring.frames("s", PROMPT))
    ring.close("s")
    text = list(PROMPT)
    for frame in told:
        rows = json.loads(frame.meta["logprobs"])
        expected = whole.logits(text).log_softmax(0)
        assert rows[0][0] == int(frame.tensors[0]) == 7
        assert [row[0] for row in rows[1:]] == expected.topk(3).indices.tolist()
        assert all(abs(chance - float(expected[token])) < 1e-4 for token, chance, _ in rows)
        assert rows[0][2] == whole.tokenizer.decode([7])
        text.append(7)


class Texts:
    """Stands for a tokenizer whose tokens are texts, each of two bytes to be decoded together."""

    def __init__(self, texts):
        self.texts = texts

    def decode(self, ids):
        return "".join(self.texts[one] for one in ids)


def test_texts_that_a_frame_has_no_room_for_are_cut_and_numbers_never():
    sampler, logits = Sampler(Sampling(1, logprobs=20), 40), torch.arange(40.0)
    told = json.loads(sampler.format_logprobs(logits, 3, 0, Texts([f"<{n}>" for n in range(40)])))
    assert told[0][2] == "<3>" and [row[2] for row in told[1:3]] == ["<39>", "<38>"]
    for text in ("x" * 100_000, '"' * 50, "\x00" * 30, "\U0001f600" * 40):
        said = sampler.format_logprobs(logits, 3, 0, Texts(["", *[text] * 39]))
        assert len(said.encode()) <= MAX_TOLD_BYTES
        assert [row[:2] for row in json.loads(said)] == [row[:2] for row in told]
        assert all(text.startswith(row[2]) for row in json.loads(said))


def test_a_token_that_ends_a_character_is_told_with_it():
    class Halves:
        def decode(self, ids):
            return {(0,): "a\ufffd", (0, 1): "a\u00e9"}[tuple(ids)]

    sampler = Sampler(Sampling(1, logprobs=0), 2)
    assert json.loads(sampler.format_logprobs(torch.zeros(2), 1, 0, Halves()))[0][2] == "\u00e9"


def test_none_are_told_unless_asked_for(ring):
    ring.open("s", max_tokens=3)
    assert all("logprobs" not in frame.meta for frame in ring.frames("s", PROMPT))
    ring.close("s")
    ring.open("s", max_tokens=3, logprobs=0)
    assert all(len(json.loads(frame.meta["logprobs"])) == 1 for frame in ring.frames("s", PROMPT))


ABSURD = [
    {"top_k": -1},
    {"top_k": 1.5},
    {"min_p": 1.1},
    {"min_p": float("nan")},
    {"repetition_penalty": 0},
    {"repetition_penalty": "inf"},
    {"presence_penalty": 2.1},
    {"frequency_penalty": "-2.5"},
    {"logit_bias": [1]},
    {"logit_bias": {"x": 1}},
    {"logit_bias": {"5": -100, "05": 100}},
    {"logit_bias": {-1: 1}},
    {"logit_bias": {"1": 101}},
    {"logit_bias": {str(i): 1 for i in range(301)}},
    {"logit_bias": {"100000": 1}},
    {"logprobs": 21},
    {"logprobs": True},
    {"json_object": 1},
    {"json_schema": ""},
    {"json_schema": {"type": "object"}},
    {"json_schema": "x" * 16_385},
    {"json_object": True, "json_schema": "{}"},
]


@pytest.mark.parametrize("params", ABSURD, ids=lambda params: str(params)[:40])
def test_an_absurd_value_is_refused_by_name(ring, params):
    with pytest.raises(BadInput) as caught:
        ring.actors["driver"].open("s", params)
    assert caught.value.field == next(iter(params))
    ring.actors["driver"].open("s", {})
