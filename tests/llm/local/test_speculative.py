"""A whole model in this process that runs ahead by guess says what the plain loop says, in fewer turns."""

import pytest

from nodewire.errors import TooLarge
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.local.speculative import LocalSpeculation
from nodewire.llm.tokens.sampling_params import parse_params

PROMPT = "the cat sat on the mat and the cat sat on"


@pytest.mark.parametrize("params", [{}, {"temperature": 3.0, "seed": 11}], ids=["greedy", "sampled"])
def test_guesses_change_nothing_but_the_number_of_turns(plain, params):
    asked = {"max_tokens": 60, **params}
    whole = LocalDecoder(plain)
    expected = list(whole.steps(PROMPT, parse_params(asked, whole.positions)))
    alone, drafting = LocalSpeculation(plain), LocalSpeculation(plain, draft=plain)
    assert list(alone.steps(PROMPT, asked)) == expected
    assert alone.turns == len(expected)
    for lookahead in (2, 16):
        assert list(alone.steps(PROMPT, {**asked, "lookahead": lookahead})) == expected
        assert list(drafting.steps(PROMPT, {**asked, "lookahead": lookahead})) == expected


def test_a_generation_that_is_left_frees_its_session(plain):
    alone = LocalSpeculation(plain)
    first = next(alone.steps(PROMPT, {"max_tokens": 9, "lookahead": 4}))
    assert next(alone.steps(PROMPT, {"max_tokens": 9, "lookahead": 4})) == first
    with pytest.raises(TooLarge):
        next(alone.steps("x" * 2_000, {"max_tokens": 9}))
