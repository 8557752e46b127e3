"""A stage that puts out NaN: the ring goes on with others, where it was, and who noticed it has lost nothing."""

from __future__ import annotations

import asyncio

import pytest

from nodewire.errors import BadInput, TooLarge
from tests.market.failure.test_market_failures import whole_tokens
from tests.market.market_process import STALLS

pytestmark = pytest.mark.timeout(600)
PROMPT = "the cat sat on the mat"
AFTER = 70
"""The frame from which on bea's stage.1 lies: in the second run of 64 tokens, so two chunks are whole."""


@pytest.fixture
async def liar(market):
    """bea, whose stage.1 puts out NaN after a while; her public key."""
    await asyncio.to_thread(market.stop_one, "bea")
    market.spawn_dishonest("bea", "nan", "stage.1", after=AFTER)
    await asyncio.to_thread(market.ready, "bea")
    now = await market.until(lambda s: True)
    await market.until(market.is_free(*STALLS), after=now.body.epoch + 1)
    yield market.public["bea"]
    await asyncio.to_thread(market.stop_one, "bea")
    await asyncio.to_thread(market.start_provider, "bea")
    now = await market.until(lambda s: True)
    await market.until(market.is_free(*STALLS), after=now.body.epoch + 1)


@pytest.mark.parametrize("driver", ["provider", "local"])
async def test_a_generation_goes_on_without_a_stage_that_puts_out_nan_and_who_refused_it(market, liar, driver):
    names = {public: name for name, public in market.public.items()}
    epoch = await market.until(market.is_free(*STALLS))
    async with market.customer(f"amid-{driver}") as customer:
        await customer.session.market.epoch(timeout_s=30, after=epoch.body.epoch - 1)
        terms = customer.terms.model_copy(update={"driver": driver})
        ids: list[int] = []
        async with asyncio.timeout(300):
            async for piece in customer.generate(market.decoder["address"], PROMPT, max_tokens=100, terms=terms):
                ids += piece.ids
        assert ids == whole_tokens(market, PROMPT, 100)
        lied, made = customer.purchases
        held = [{one.task: names.get(one.provider) for one in each.plan.tasks} for each in (lied, made)]
        assert [one["stage.1"] for one in held] == ["bea", "eve"]
        assert [one["stage.2"] for one in held] == ["cyd", "dan"]
        # The chunks that were whole are paid to all, the liar too, and nobody is owed any.
        prices = {p: sum(one.price_msat for one in lied.plan.tasks if one.provider == p) for p in lied.plan.providers()}
        assert paid(lied) == {public: 2 * price for public, price in prices.items()}
        assert customer.session.payer.unpaid() == []
        without = terms.model_copy(update={"excluded": (liar,)})
        async for _ in customer.generate(market.decoder["address"], PROMPT, max_tokens=2, terms=without):
            pass
        assert market.public["cyd"] in customer.last["providers"]
    for name in STALLS:
        ledger = market.ledger(name)
        assert ledger.owed_msat(market.keys(f"amid-{driver}").public) == 0
        ledger.close()


def paid(purchase) -> dict[str, int]:
    """By provider, what it was paid for a job."""
    found: dict[str, int] = {}
    for one in purchase.payments.paid.values():
        found[one.provider] = found.get(one.provider, 0) + one.due.amount_msat
    return found


async def test_a_prompt_that_is_too_long_fails_with_its_own_code_once_a_second_driver_says_so(market):
    async with market.customer("verbose") as customer:
        with pytest.raises(TooLarge, match="context"):
            async for _ in customer.generate(market.decoder["address"], "the cat " * 2_000, max_tokens=2):
                pass
        assert len(customer.purchases) == 2
        assert len({one.plan.tasks[0].provider for one in customer.purchases}) == 2
        assert not any(paid(one) for one in customer.purchases)


class Bytes(str):
    """A text that goes out as what is none."""

    def encode(self, *_):
        return b"the \xff\xfe cat"


async def test_bytes_that_are_no_text_are_the_customers_fault_and_cost_nothing(market):
    async with market.customer("garbled") as customer:
        with pytest.raises(BadInput, match="UTF-8"):
            async for _ in customer.generate(market.decoder["address"], Bytes("the cat"), max_tokens=2):
                pass
        assert len(customer.purchases) == 2  # a second driver says the same
        assert not any(paid(one) for one in customer.purchases)
        with pytest.raises(BadInput, match="surrogate"):
            await anext(customer.generate(market.decoder["address"], "the \ud800 cat"))
        assert len(customer.purchases) == 2
