"""A customer whose wallet cannot pay is told so before anything is published: nobody computes for nothing."""

from __future__ import annotations

import asyncio
import re

import pytest

from nodewire.errors import LinkLost, NodewireError, PaymentFailed
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from tests.market.market_process import RunningMarket

pytestmark = pytest.mark.timeout(600)


async def refusal(market: RunningMarket, name: str) -> NodewireError:
    """How a generation of this customer is refused; no request of it is on the relay."""
    async with market.customer(name) as customer:
        with pytest.raises(NodewireError) as refused:
            async for _ in customer.generate(market.decoder["address"], "the cat sat", max_tokens=4):
                pass
        assert not any(purchase.is_underway for purchase in customer.purchases)
        mine = Filter(kinds=frozenset({kinds.INFERENCE}), authors=frozenset({customer.session.keys.public}))
    assert await market.events(mine) == []
    return refused.value


@pytest.mark.parametrize("sats", [0, 1])
async def test_a_wallet_that_cannot_pay_a_chunk_is_told_with_both_amounts(market, sats):
    name = f"poor-{sats}"
    await market.customer_config(name, sats=sats)
    error = await refusal(market, name)
    assert isinstance(error, PaymentFailed) and error.field == "balance"
    assert re.search(rf"costs \d+\.?\d* sat or more, the wallet holds {sats} sat", error.reason)
    config = ["--config", str(market.config_of(name))]
    done = await asyncio.to_thread(market.run, "embed", "a cat", "--model", market.encoder["address"], *config)
    said = b" ".join((done.stdout + done.stderr).split())
    assert done.returncode and f"the wallet holds {sats} sat".encode() in said


async def test_a_wallet_with_another_token_is_told(market):
    path = await market.customer_config("mistaken")
    token = next(path.parent.glob("*.token"))
    token.write_text("00" * 32)
    error = await refusal(market, "mistaken")
    assert not isinstance(error, LinkLost) and "token" in str(error)


async def test_a_wallet_out_of_reach_is_told(market):
    path = await market.customer_config("lonely")
    path.write_text(path.read_text().replace(market.simnet, "http://127.0.0.1:1"))
    error = await refusal(market, "lonely")
    assert isinstance(error, LinkLost) and error.field == "wallet"
