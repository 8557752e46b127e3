"""What a customer gets is what one process would have made, and what it pays is what the providers got."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from running_market import DECODER_MSAT, STALLS

from nodewire.graph import whole as whole_encoder
from nodewire.llm.sampling import parse_params
from nodewire.llm.whole import Whole
from nodewire.nostr import nip44
from nodewire.nostr.nip01 import Filter
from nodewire.pay import lnurl, zaps
from nodewire.pay.debts import Key
from nodewire.protocol import ad, certificate, commitment, kinds, receipt, result

PROMPT = "the cat sat on the mat while nobody saw"
TOKENS = 140
SENTENCES = ["the cat sat on the mat", "a dog ran under the tree", "rain", "the sun sat on a cat under the rain"]


@pytest.fixture(scope="module")
def alone(market):
    """What a single process makes of a prompt."""
    model = Whole(market.decoder_folder)

    def generate(prompt: str, max_tokens: int, **params) -> tuple[list[int], str]:
        steps = list(model.steps(prompt, parse_params({"max_tokens": max_tokens, **params}, model.positions)))
        return [token for token, _ in steps], "".join(text for _, text in steps)

    return generate


async def generate(customer, market, prompt=PROMPT, **params):
    ids = []
    async for piece in customer.generate(market.decoder["address"], prompt, **params):
        ids += piece.ids
    return ids


async def test_a_generation_over_three_chunks_equals_a_single_process_and_is_paid_to_the_millisat(market, alone):
    before = await market.balances_msat(*STALLS)
    async with market.customer("alice") as alice:
        ids = await generate(alice, market, max_tokens=TOKENS)
        done = alice.last
    assert (ids, done["text"]) == alone(PROMPT, TOKENS)
    assert len(ids) == TOKENS

    after = await market.balances_msat(*STALLS)
    got = {market.public[name]: after[name] - before[name] for name in STALLS}
    assert {p: msat for p, msat in got.items() if msat} == done["paid_msat"]
    left = (await market.balances_msat("alice"))["alice"]
    assert 100_000_000 - left == sum(got.values()) + done["fees_msat"]
    ledger = market.ledger("alice")
    spent = ledger.spent()
    ledger.close()
    assert (spent.paid_msat, spent.fees_msat, spent.pending_msat) == (sum(got.values()), done["fees_msat"], 0)
    assert done["zaps"] >= 3 * len(done["providers"])
