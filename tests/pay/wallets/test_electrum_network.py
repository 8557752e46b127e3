"""Three real nodes, A-B-C, of which one dies by kill -9 while a payment of the customer is on its way through it."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from nodewire.errors import LinkLost, NodewireError, NotFound, TimedOut
from nodewire.pay.accounts import payer as paying
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.probe import probe
from tests.pay.pay_market import Market
from tests.pay.wallets.services import electrum_network
from tools.lightning.network import Network, wallet_settings

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not electrum_network.is_there(),
        reason=f"not run: {electrum_network.STATE} names no network of real nodes; `make lightning` has one",
    ),
]
AMOUNT_MSAT = 21_000


@pytest.fixture
async def wallets():
    """By node, what its Electrum has."""
    async with AsyncExitStack() as stack:
        found = {name: node.wallet() for name, node in electrum_network.node_settings().items()}
        for wallet in found.values():
            stack.push_async_callback(wallet.close)
        yield found


@pytest.fixture
def network():
    """It, with all its nodes up before the test and after."""
    found = Network(Path(os.environ[electrum_network.STATE]).parent)
    found.up()
    yield found
    found.up()


async def reach(wallet, payment_hash, direction, state):
    async with asyncio.timeout(120):
        while True:
            try:
                found = await wallet.lookup(payment_hash, direction)
            except (LinkLost, TimedOut, NotFound):
                pass
            else:
                if found.state == state:
                    return found
                assert found.state in ("open", "pending"), found
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("victim", ["a", "b", "c"])
async def test_a_node_that_is_killed_while_a_payment_is_on_its_way_costs_no_second_payment(
    victim, wallets, network, tmp_path, monkeypatch
):
    monkeypatch.setattr(paying, "_WAIT_S", 1.0)
    payer, payee = wallets["a"], wallets["c"]
    had_msat = {one: await one.balance_msat() for one in (payer, payee)}
    preimage = os.urandom(32).hex()
    payment_hash = invoices.hash_of(preimage)
    bought = []

    async def hold(request, amount_msat):
        bought.append(
            await payee.hold_invoice(
                amount_msat, payment_hash=payment_hash, description=request.to_json(), expiry_s=600
            )
        )
        return bought[-1]

    market = Market(payee, payer, tmp_path)
    with pytest.raises(TimedOut):
        await market.pay(amount_msat=AMOUNT_MSAT, fetch=hold)
    await reach(payee, payment_hash, "in", "pending")

    network.daemon(victim).kill()
    assert network.daemon(victim).pid() is None
    with pytest.raises((LinkLost, TimedOut)):
        await market.pay(amount_msat=AMOUNT_MSAT, fetch=hold)
    if victim == "a":  # the customer's process knows no more than the ledger
        market.close()
        market = Market(payee, payer, tmp_path)
    network.start_node(victim)
    network.wait_ready(victim)
    assert (await payer.lookup(payment_hash, "out")).state == "pending"
    with pytest.raises(TimedOut):
        await market.pay(amount_msat=AMOUNT_MSAT, fetch=hold)
    assert await market.payer.recover() == []

    await payee.settle_hold(preimage)
    paid = await reach(payer, payment_hash, "out", "settled")
    debt = await market.pay(amount_msat=AMOUNT_MSAT, fetch=hold)
    assert (debt.state, len(debt.parts), len(bought)) == ("paid", 1, 1)
    assert debt.parts[0].payment.payment_hash == payment_hash and paid.preimage == preimage
    await reach(payee, payment_hash, "in", "settled")
    assert await payee.balance_msat() - had_msat[payee] == AMOUNT_MSAT
    assert had_msat[payer] - await payer.balance_msat() == AMOUNT_MSAT + paid.fee_msat
    market.close()


async def test_a_payment_that_failed_stays_so_after_a_crash(wallets, network):
    """Electrum by itself would try it again."""
    invoice = await wallets["c"].invoice(AMOUNT_MSAT, description="x", expiry_s=600)
    refused = await wallets["a"].pay(invoice.bolt11, max_fee_msat=0)
    assert (refused.state, refused.reason) == ("failed", "Fee budget exceeded")
    network.daemon("a").kill()
    network.start_node("a")
    network.wait_ready("a")
    for found in (
        await wallets["a"].lookup(invoice.payment_hash, "out"),
        await wallets["a"].pay(invoice.bolt11, max_fee_msat=10_000),
    ):
        assert (found.state, found.reason) == ("failed", "Fee budget exceeded")


async def test_an_amount_with_which_electrum_never_ends_is_not_begun(wallets):
    invoice = invoices.issue(
        b"\x07" * 32,
        network="bcrt",
        amount_msat=2,
        payment_hash=os.urandom(32).hex(),
        created_at_s=int(time.time()),
        expiry_s=600,
        description_hash="ab" * 32,
    )
    found = await wallets["a"].pay(invoice.bolt11, max_fee_msat=10_000)
    assert (found.state, found.reason) == ("failed", "Electrum pays no part of a satoshi alone")
    assert await wallets["a"].balance_msat() > 0


async def test_every_ability_works_or_is_said(wallets):
    for wallet in wallets.values():
        _, found = await probe(wallet)
        assert {one.state for one in found} <= {"works", "untried"}, found


async def test_no_secret_is_in_an_error_or_an_id(wallets, network):
    password = wallets["a"]._password
    network.daemon("a").kill()
    with pytest.raises(NodewireError) as lost:
        await wallets["a"].balance_msat()
    network.start_node("a")
    network.wait_ready("a")
    assert password not in str(lost.value) + repr(wallets["a"]) + (await wallets["a"].info()).id


def test_the_settings_of_the_three_wallets_are_those_of_a_role():
    found = list(wallet_settings(Path(os.environ[electrum_network.STATE])))
    assert [one["kind"] for one in found] == ["electrum"] * 3 and {one["network"] for one in found} == {"bcrt"}
    assert len({one["url"] for one in found}) == len({one["token_file"] for one in found}) == 3
    assert all(Path(one["token_file"]).stat().st_mode & 0o077 == 0 for one in found)
