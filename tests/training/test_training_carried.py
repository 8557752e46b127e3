"""What providers carry from round to round: parity with the bare loop, refusals, crashes, and who lies about it."""

from __future__ import annotations

import pytest
import torch

from nodewire.protocol.recipe import Compression, Outer
from nodewire.train import bare, state
from tests.kinds.digits import RECIPE, dataset
from tests.training import small_market
from tests.training.small_market import LEAST_MSAT, provider, train

torch.set_num_threads(1)
NESTEROV = Outer(method="nesterov", lr="0.7", momentum="0.9")
FEEDBACK = RECIPE.model_copy(
    update={"compression": Compression(method="int4", error_feedback="0.9"), "outer": NESTEROV}
)
FRAGMENTS = RECIPE.model_copy(update={"rounds": 5, "compression": Compression(fragments=2), "outer": NESTEROV})
BOTH = FRAGMENTS.model_copy(
    update={"compression": Compression(method="int4", block=128, fragments=2, error_feedback="1.0")}
)
FORMS = pytest.mark.parametrize("recipe", [FEEDBACK, FRAGMENTS, BOTH], ids=["feedback", "fragments", "both"])


@pytest.fixture
async def market(tmp_path):
    async with small_market.opened(tmp_path) as running:
        yield running


def expected(recipe, shards=2, taken_over=()) -> bytes:
    return state.pack(bare.run(recipe, dataset(), shards, taken_over=taken_over)[0])


@FORMS
async def test_the_market_makes_what_the_bare_loop_makes(market, recipe):
    async with provider(market, "ada"), provider(market, "bea"):
        done, weights = await train(market, "dora", recipe)
    assert weights == expected(recipe)
    assert weights != expected(recipe.model_copy(update={"compression": Compression(method="int4")}))
    assert done.failures == ()
    assert [await market.balance_msat(name) for name in ("ada", "bea")] == [recipe.rounds * LEAST_MSAT] * 2
    assert not list((market.folder / "ada" / "carried").iterdir())
    assert not list((market.folder / "ada" / "made").iterdir())
