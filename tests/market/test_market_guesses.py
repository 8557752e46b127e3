"""A driver that guesses ahead: the tokens, the payments and the verdicts of one that does not."""

from __future__ import annotations

import pytest

from nodewire.llm.sampling import parse_params
from nodewire.llm.whole import Whole
from nodewire.nostr.nip01 import Filter
from nodewire.protocol import job, kinds

PROMPT = "the cat sat on the mat while the cat sat on the mat while the cat sat on"


@pytest.fixture(scope="module")
def alone(market):
    """The ids that a single process makes of a prompt."""
    model = Whole(market.decoder_folder)

    def generate(**params):
        return list(model.tokens(model.tokenizer.encode(PROMPT), parse_params(params, model.positions)))

    return generate


async def generate(customer, market, **params):
    ids = []
    async for piece in customer.generate(market.decoder["address"], PROMPT, **params):
        ids += piece.ids
    return ids


@pytest.mark.parametrize(
    "params",
    [
        {"max_tokens": 140},
        {"max_tokens": 70, "temperature": 0.7, "seed": 5, "top_k": 20, "min_p": 0.02, "presence_penalty": 0.5},
        {"max_tokens": 30, "logit_bias": {"7": 100.0}, "frequency_penalty": 1.5},
    ],
)
async def test_who_has_its_driver_guess_gets_the_same_tokens_and_pays_the_same(market, alone, params):
    plain, made = {}, {}
    async with market.customer("plodder") as plodder:
        assert await generate(plodder, market, **params) == alone(**params)
        plain = plodder.last
    async with market.customer("guesser", lookahead=8) as guesser:
        assert await generate(guesser, market, **params) == alone(**params)
        made = guesser.last
    (asked,) = await market.events(Filter(ids=frozenset({made["request"]}), kinds=frozenset({kinds.INFERENCE})))
    assert job.parse(asked).plan.terms.lookahead == 8
    assert sum(made["paid_msat"].values()) == sum(plain["paid_msat"].values()) > 0


async def test_what_was_guessed_around_passes_its_judgement(market):
    now = await market.until(lambda s: True)
    async with market.customer("guesser", lookahead=8) as guesser:
        await guesser.session.market.epoch(timeout_s=10, after=now.body.epoch - 1)
        terms = guesser.terms.model_copy(update={"verify": "sampled"})
        ids = await generate(guesser, market, max_tokens=20, terms=terms, wait=True)
        done = guesser.last
    assert len(ids) == 20
    assert done["repaired"] == []
    assert {one["outcome"] for one in done["verdicts"]} == {"pass"}
