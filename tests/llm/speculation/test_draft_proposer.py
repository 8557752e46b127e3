"""A small model guesses with the session's seed: as good as its likeness, and never in the way of what is said."""

import pytest
import torch

from nodewire.errors import BadTask
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.speculation.draft_proposer import SmallModel, SmallModelDrafter
from nodewire.llm.tokens.sampler import Sampler
from nodewire.llm.tokens.sampling_params import Sampling, parse_params

PROMPT = [5, 77, 130, 9, 201, 44, 12]
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 11}


@pytest.fixture
def small(plain):
    return SmallModel(LocalDecoder(plain))


def drafting(ring, small):
    ring.actors["driver"]._make_drafters = lambda sampler: [SmallModelDrafter(small, sampler, 300)]


@pytest.mark.parametrize("params", [{}, SAMPLED, SAMPLED | {"repetition_penalty": 1.4}], ids=str)
def test_the_same_model_guesses_every_token(ring, small, params):
    expected = ring.generate(PROMPT, max_tokens=60, **params)
    drafter = SmallModelDrafter(small, Sampler(parse_params(params, 256), 300), 300)
    drafter._sampler.begin(torch.tensor(PROMPT))
    for token in PROMPT:
        drafter.accept(token)
    place, path = drafter.root(), []
    for _ in range(10):
        path.append(drafter.candidates(place)[0].token)
        place = drafter.after(place, path[-1])
    assert path == expected[0][:10]
    drafting(ring, small)
    assert ring.generate(PROMPT, max_tokens=60, lookahead=8, **params) == expected


def test_sessions_take_turns_with_one_small_model(small, whole):
    texts = {"a": [1, 2, 3, 4], "b": [1, 2, 9], "c": [1]}
    for name in "aabacbbca":
        text = texts[name]
        assert (small.after(list(text)) - whole.logits(text)).abs().max() < 1e-4
        text.append(len(text))


class Counted:
    """A decoder, and what is asked of it."""

    def __init__(self, decoder):
        self.decoder, self.positions, self.asked = decoder, decoder.positions, []

    def logits(self, ids, pos=0):
        self.asked.append((len(ids), pos))
        return self.decoder.logits(ids, pos)


def test_each_session_has_a_lane_while_it_is_among_the_last_asked(plain, whole):
    lanes = [Counted(LocalDecoder(plain)) for _ in range(2)]
    small = SmallModel(*lanes)
    texts = {"a": [1, 2, 3], "b": [1, 2, 3, 4, 5], "c": [9, 8]}
    whose = {name: object() for name in texts}
    for name in "ababacac":
        assert (small.after(list(texts[name]), whose[name]) - whole.logits(texts[name])).abs().max() < 1e-4
        texts[name].append(7)
    assert lanes[0].asked == [(3, 0), (1, 3), (1, 4), (1, 5)]  # nobody took it from "a"
    assert lanes[1].asked == [(5, 0), (1, 5), (2, 0), (1, 2)]


def test_only_what_the_lane_lacks_is_computed(plain):
    small = SmallModel(decoder := Counted(LocalDecoder(plain)))
    asked = decoder.asked
    for text in ([1, 2, 3], [1, 2, 3, 4], [1, 2, 5], [1, 2, 5], [1]):
        small.after(text)
    assert asked == [(3, 0), (1, 3), (1, 2), (1, 2), (1, 0)]


def test_a_model_of_other_tokens_is_refused(small):
    drafter = SmallModelDrafter(small, Sampler(Sampling(1), 299), 299)
    drafter.accept(1)
    with pytest.raises(BadTask):
        drafter.candidates(drafter.root())
