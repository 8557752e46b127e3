"""How far a token was from being the choice, and what a driver that judges another says in its place."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadInput
from nodewire.llm.tokens.leeway import could_be, excused_gap, gap, is_excused
from nodewire.llm.tokens.sampling_params import Sampling, choose, parse_params
from nodewire.protocol.model import token_list
from tests.llm.excused_vectors import VECTORS, excuses
from tests.llm.judged_driver import choosing, excused_in, judged, recorded, tokens_of

PROMPT = [5, 77, 130, 9, 201, 44, 12]
TOKENS = 64
WAYS = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 3},
    "cut": {"temperature": 0.8, "seed": 4, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
    "bent": {"temperature": 1.0, "seed": 5, "repetition_penalty": 1.3, "presence_penalty": 0.5},
}


@settings(deadline=None, max_examples=300)
@given(
    st.integers(0, 2**32),
    st.integers(2, 300),
    st.sampled_from([0.0, 0.3, 1.0, 4.0]),
    st.sampled_from([1.0, 0.95, 0.5]),
    st.sampled_from([0, 1, 5, 40]),
    st.sampled_from([0.0, 0.02, 0.3]),
    st.sampled_from([0.0, 1e-6, 1e-3, 0.05, 0.5]),
)
def test_what_honest_logits_choose_is_never_out_of_reach(seed, vocabulary, temperature, top_p, top_k, min_p, error):
    """Of all logits that are off by no more than that, whatever the sampling is."""
    source = torch.Generator().manual_seed(seed)
    logits = torch.randn(vocabulary, generator=source) * 4
    if seed % 3 == 0:
        logits[torch.rand(vocabulary, generator=source) < 0.3] = -torch.inf  # a grammar's mask
        logits[0] = 0.0
    sampling = Sampling(1, temperature, top_p, seed=seed, top_k=top_k, min_p=min_p)
    noise = (torch.rand(vocabulary, generator=source, dtype=torch.float64) - 0.5) * error
    for pos in range(6):
        token = choose((logits.double() + noise), sampling, pos)
        assert could_be(logits, sampling, pos, token, error + 1e-9)
        assert gap(logits, sampling, pos, token) <= error + 1e-6


def test_the_committed_vectors_are_excused_or_not_as_they_say():
    """Of each the error is 2 % more or less than the least that excuses it."""
    cases = json.loads(VECTORS.read_text())
    assert len({case["excused"] for case in cases}) == 2
    for case in cases:
        assert excuses(case) == case["excused"]


def test_the_gap_of_a_choice_is_nothing_and_of_a_token_that_may_not_be_infinite():
    logits = torch.randn(50, generator=torch.Generator().manual_seed(1))
    logits[7] = -torch.inf
    for sampling in (Sampling(1), Sampling(1, 1.0, seed=2)):
        assert gap(logits, sampling, 3, choose(logits, sampling, 3)) == 0
        assert gap(logits, sampling, 3, 7) == math.inf
        assert gap(logits, sampling, 3, 50) == math.inf
        assert not could_be(logits, sampling, 3, -1, 1e9)


def test_of_a_greedy_choice_the_gap_is_the_distance_to_the_largest_logit():
    assert gap(torch.tensor([1.0, 4.0, 3.5]), Sampling(1), 0, 2) == 0.5


def test_two_last_bits_of_the_largest_logit_are_excused():
    logits = torch.tensor([20.0, 19.75, 19.7])  # a bfloat16 of 16 to 32 is a multiple of 1/8
    for token, is_excused_ in ((1, True), (2, False)):
        assert is_excused(logits, Sampling(1), 0, token, 20.0, torch.bfloat16) is is_excused_
        assert not is_excused(logits, Sampling(1), 0, token, 20.0, torch.float32)
    assert [excused_gap(scale, torch.float16) for scale in (1.0, 1.99, 2.0, 0.5)] == [2**-9, 2**-9, 2**-8, 2**-10]


@pytest.mark.parametrize("way", WAYS)
def test_an_honest_driver_is_repeated_token_by_token(ring, way):
    said = recorded(ring, PROMPT, max_tokens=TOKENS, **WAYS[way])
    again = judged(ring, said.took, said.tokens, max_tokens=TOKENS, **WAYS[way])
    assert [(f.edge, f.seq, f.tensors[0].tolist()) for f in again] == [
        (f.edge, f.seq, f.tensors[0].tolist()) for f in said.gave
    ]


@pytest.mark.parametrize("way", WAYS)
def test_a_token_that_unlike_logits_chose_is_followed_and_all_that_comes_of_it(ring, way, monkeypatch):
    """The judge's own arithmetic is a little off: all its choices that differ are ties, and it says the other's."""
    said = recorded(ring, PROMPT, max_tokens=TOKENS, **WAYS[way])
    source = torch.Generator().manual_seed(8)

    def off(honest, logits, sampling, pos):
        return honest(logits + torch.randn(len(logits), generator=source) * 0.5, sampling, pos)

    monkeypatch.setattr("nodewire.llm.tokens.leeway.ROUNDED", {torch.float32: 0})
    with choosing(off):
        alone = judged(ring, said.took, {}, max_tokens=TOKENS, **WAYS[way])
        again = judged(ring, said.took, said.tokens, max_tokens=TOKENS, **WAYS[way])
    assert tokens_of(alone) != said.tokens
    assert tokens_of(again) == said.tokens
    assert again[-1].meta["reason"] == said.gave[-1].meta["reason"]


def second_best(share):
    def chosen(honest, logits, sampling, pos):
        draw = int.from_bytes(hashlib.sha256(f"{pos}".encode()).digest()[:4], "big") / 2**32
        first = honest(logits, sampling, pos)
        return first if draw >= share else next(int(one) for one in logits.topk(2).indices if int(one) != first)

    return chosen


CHEATS = {
    "one token of 64": (lambda honest, x, s, pos: honest(x, s, pos) if pos != 40 else (honest(x, s, pos) + 1) % 200, 1),
    "the second-best now and then": (second_best(0.05), 1),
    "another temperature": (lambda honest, x, s, pos: honest(x, replace(s, temperature=s.temperature * 0.97), pos), 1),
    "another top_p": (lambda honest, x, s, pos: honest(x, replace(s, top_p=0.9), pos), 1),
    "another seed": (lambda honest, x, s, pos: honest(x, replace(s, seed=s.seed + 1), pos), 30),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_token_that_no_machine_chooses_is_not_repeated(ring, cheat):
    choose_, least = CHEATS[cheat]
    params = {"max_tokens": TOKENS, "temperature": 1.0, "seed": 6}
    with choosing(choose_):
        said = recorded(ring, PROMPT, **params)
    own = tokens_of(judged(ring, said.took, {}, **params))
    found = tokens_of(judged(ring, said.took, said.tokens, **params))
    wrong = {seq for seq, token in said.tokens.items() if own.get(seq) != token}
    assert len(wrong) >= least  # the cheat struck
    assert {seq for seq, token in said.tokens.items() if found.get(seq) != token} == wrong


def test_a_driver_that_goes_on_after_the_end_is_not_followed(ring):
    """It ignores the end of text: who judges it puts out what is right, and takes the rest without a word."""
    said = recorded(ring, PROMPT, max_tokens=TOKENS)
    again = judged(ring, said.took, said.tokens, max_tokens=TOKENS, logit_bias={"0": 100})
    assert tokens_of(again) == {0: 0}
    assert again[-1].meta["reason"] == "eos"


def test_of_a_thirds_tokens_it_says_which_it_excuses(ring):
    said = recorded(ring, PROMPT, max_tokens=TOKENS)
    beside = {**said.tokens, 5: (said.tokens[5] + 1) % 200}
    assert excused_in(judged(ring, said.took, said.tokens, beside, max_tokens=TOKENS)) == set()
    sampled = {"max_tokens": TOKENS, "temperature": 1.0, "seed": 9}
    said = recorded(ring, PROMPT, **sampled)

    def lenient(logits, sampling, pos, token, scale, dtype):
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nodewire.llm.tokens.sampler.is_excused", lenient)
        assert excused_in(judged(ring, said.took, said.tokens, beside, **sampled)) >= {5}


@pytest.mark.parametrize("value", [b"abc", "text", [1, 2], bytes(4 * token_list.MAX_TOKENS + 4), None])
def test_tokens_that_nobody_packed_are_refused(value):
    for name in (token_list.SAID, token_list.BESIDE):
        with pytest.raises(BadInput, match=name):
            parse_params({name: value}, 100)


@given(st.dictionaries(st.integers(-3, 400), st.integers(-5, 2**33)))
def test_tokens_come_back_as_they_were_packed(tokens):
    found = token_list.unpack("said", token_list.pack(tokens))
    known = {seq: token for seq, token in tokens.items() if seq >= 0 and 0 <= token < 2**32 - 1}
    assert {seq: token for seq, token in enumerate(found) if token is not None} == known
