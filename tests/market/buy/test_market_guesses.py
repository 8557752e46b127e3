"""A driver that guesses ahead: the tokens, the payments and the verdicts of one that does not."""

from __future__ import annotations

import json

import pytest

from nodewire.errors import BadConfig
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import parse_params
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.job import request
from tests.market.market_process import WORKER

PROMPT = "the cat sat on the mat while the cat sat on the mat while the cat sat on"
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "sizes": {"type": "array", "maxItems": 9}},
        "required": ["name", "sizes"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def alone(market):
    """The ids that a single process makes of a prompt."""
    model = LocalDecoder(market.decoder_folder)

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
        {"max_tokens": 200, "json_schema": SCHEMA, "logprobs": 2, "temperature": 1.5, "seed": 4},
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
    assert request.parse(asked).plan.terms.lookahead == 8
    assert sum(made["paid_msat"].values()) == sum(plain["paid_msat"].values()) > 0


async def test_what_was_guessed_around_passes_its_judgement(market):
    now = await market.until(lambda s: True)
    async with market.customer("guesser", lookahead=8) as guesser:
        await guesser.session.market.epoch(timeout_s=30, after=now.body.epoch - 1)
        terms = guesser.terms.model_copy(update={"verify": "sampled"})
        ids = await generate(guesser, market, max_tokens=20, terms=terms, wait=True)
        done = guesser.last
    assert len(ids) == 20
    assert done["repaired"] == []
    assert {one["outcome"] for one in done["verdicts"]} == {"pass"}


async def test_a_verifier_keeps_to_the_schema_that_the_ticket_seals(market):
    async with market.customer("schemer", lookahead=8) as schemer:
        terms = schemer.terms.model_copy(update={"verify": "sampled"})
        params = {"max_tokens": 200, "json_schema": SCHEMA, "logprobs": 2, "temperature": 1.5, "seed": 4}
        await generate(schemer, market, **params, terms=terms, wait=True)
        done = schemer.last
    assert list(json.loads(done["text"])) == ["name", "sizes"]
    assert [len(rows) for rows in done["logprobs"]] == [3] * len(done["ids"])
    assert [rows[0]["id"] for rows in done["logprobs"]] == done["ids"]
    assert done["repaired"] == [] and {one["outcome"] for one in done["verdicts"]} == {"pass"}


async def test_a_customers_own_driver_guesses_by_the_draft_model_that_its_file_names(market, alone):
    """Here the model itself. A folder that holds no such model is refused by its name."""
    path = await market.customer_config("drafter", lookahead=8)
    worker = f'[worker]\nmemory = "200MB"\ndraft = {json.dumps(str(market.decoder_folder))}'
    plain = path.read_text()
    path.write_text(plain.replace(WORKER, worker))
    async with market.customer("drafter") as drafter:
        terms = drafter.terms.model_copy(update={"driver": "local"})
        assert await generate(drafter, market, max_tokens=100, terms=terms) == alone(max_tokens=100)
    path.write_text(plain.replace(WORKER, worker.replace(str(market.decoder_folder), str(market.encoder_folder))))
    async with market.customer("drafter") as drafter:
        with pytest.raises(BadConfig, match="draft"):
            await generate(drafter, market, max_tokens=5, terms=terms)
