"""Lexe: a wallet that pays and is not paid, by the documented methods of Lexe's own client."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import time
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from nodewire.errors import BadConfig, LinkLost, NotAllowed, NotFound, PaymentFailed
from nodewire.pay.lightning import invoices
from nodewire.pay.wallets.lexe import LexeWallet
from tests.pay.conftest import lexe_wallet
from tests.pay.pay_market import Market
from tests.pay.wallets.services.lexe_node import RECORDED, LexeNode

FEE_MSAT = 10_000
with_client = pytest.mark.skipif(find_spec("lexe") is None, reason="lexe-sdk is part of the extra `lexe`")


@pytest.fixture
async def opened(open_sat_wallet):
    """`await opened(msat)` -> a node, its owner's wallet, and somebody who is paid."""
    wallets = []

    async def one(msat=0):
        node = LexeNode(await open_sat_wallet(msat))
        wallets.append(lexe_wallet(node))
        return node, wallets[-1], await open_sat_wallet()

    yield one
    for wallet in wallets:
        await wallet.close()


async def test_the_node_is_made_ready_once_before_all_else(opened):
    node, wallet, _ = await opened(50_000)
    assert await wallet.balance_msat() == 50_000
    await wallet.info()
    assert node.provisions == 1


async def test_a_payment_whose_answer_is_lost_is_made_once(opened, tmp_path):
    node, payer, payee = await opened(100_000)
    node.drops = 1
    market = Market(payee, payer, tmp_path)
    market.deliver()
    debt = await market.pay()
    assert (debt.state, len(debt.parts), len(node.told)) == ("paid", 1, 1)
    assert await payee.balance_msat() == 21_000
    market.close()


async def test_it_is_not_paid_and_says_why(opened):
    _, wallet, _ = await opened()
    for call in (wallet.invoice(1_000, description="x", expiry_s=60), anext(wallet.settled())):
        with pytest.raises(NotAllowed, match="hash of a description: be paid into another wallet"):
            await call
    with pytest.raises(NotFound):
        await wallet.lookup("ab" * 32, "in")


@pytest.mark.parametrize(
    ("scopes", "can"),
    [
        (["full"], {"balance", "pay", "lookup-out"}),
        (["spend", "read_payments", "read_info"], {"balance", "pay", "lookup-out"}),
        (["read"], {"balance", "lookup-out"}),
        (["spend"], set()),  # what was paid before it could not find
        (["receive", "manage_channels", "spring"], set()),
        ([], set()),
    ],
)
async def test_it_can_what_the_scopes_of_its_credentials_are_for(opened, scopes, can):
    node, wallet, payee = await opened(100_000)
    node.scopes = scopes
    assert (await wallet.info()).abilities == can
    if "pay" not in can:
        invoice = await payee.invoice(1_000, description="x", expiry_s=60)
        with pytest.raises(NotAllowed, match="SPEND and READ_PAYMENTS"):
            await wallet.pay(invoice.bolt11, max_fee_msat=FEE_MSAT)
        assert node.told == []


async def test_a_payment_that_failed_stays_failed(opened, open_sat_wallet):
    node, wallet, payee = await opened(100_000)
    third = await open_sat_wallet(100_000)
    invoice = await payee.invoice(21_000, description="x", expiry_s=60)
    await third.pay(invoice.bolt11, max_fee_msat=FEE_MSAT)
    for _ in range(2):
        found = await wallet.pay(invoice.bolt11, max_fee_msat=FEE_MSAT)
        assert (found.state, found.preimage, found.fee_msat) == ("failed", None, 0) and found.reason
    assert node.told == [invoice.payment_hash]


async def test_what_the_node_refuses_to_begin_stays_open(opened):
    _, wallet, payee = await opened(10_000)
    invoice = await payee.invoice(21_000, description="x", expiry_s=60)
    with pytest.raises(LinkLost, match="Lexe: Insufficient balance"):
        await wallet.pay(invoice.bolt11, max_fee_msat=FEE_MSAT)
    with pytest.raises(NotFound):
        await wallet.lookup(invoice.payment_hash, "out")


async def test_a_payment_on_its_way_is_pending_and_then_has_its_preimage(opened):
    _, wallet, payee = await opened(100_000)
    preimage = "07" * 32
    held = await payee.hold_invoice(21_000, payment_hash=invoices.hash_of(preimage), description="x", expiry_s=600)
    assert (await wallet.pay(held.bolt11, max_fee_msat=FEE_MSAT, timeout_s=0.0)).state == "pending"
    await payee.settle_hold(preimage)
    assert (await wallet.pay(held.bolt11, max_fee_msat=FEE_MSAT)).preimage == preimage


async def test_an_invoice_of_parts_of_a_satoshi_is_paid_whole(opened):
    """The client tells satoshis, the invoice has its own amount."""
    _, wallet, payee = await opened(100_000)
    invoice = await payee.invoice(21_500, description="x", expiry_s=60)
    assert (await wallet.pay(invoice.bolt11, max_fee_msat=FEE_MSAT)).amount_msat == 21_500


@pytest.mark.parametrize(
    "damage",
    [
        {"hash": "cd" * 32},
        {"status": SimpleNamespace(name="ODD")},
        {"preimage": "x"},
        {"preimage": None},
        {"fees_sats": 1.5},
        {"invoice": None},
    ],
)
async def test_a_payment_that_is_not_as_documented_is_a_lost_link(opened, damage):
    node, wallet, payee = await opened(100_000)
    invoice = await payee.invoice(21_000, description="x", expiry_s=60)
    await wallet.pay(invoice.bolt11, max_fee_msat=FEE_MSAT)
    found = await node.get_payment_by_id(f"ln_{invoice.payment_hash}")

    async def damaged(_):
        return SimpleNamespace(**(vars(found) | damage))

    node.get_payment_by_id = damaged
    with pytest.raises(LinkLost):
        await wallet.lookup(invoice.payment_hash, "out")


async def test_an_invoice_that_has_expired_is_not_told(opened):
    node, wallet, payee = await opened(100_000)
    invoice = await payee.invoice(21_000, description="x", expiry_s=3)
    while not invoice.is_expired(time.time()):
        await asyncio.sleep(0.1)
    with pytest.raises(PaymentFailed, match="it has expired"):
        await wallet.pay(invoice.bolt11, max_fee_msat=FEE_MSAT)
    assert node.told == []


# The token file


def test_without_lexes_client_its_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lexe", None)
    path = tmp_path / "lexe.token"
    path.write_text("c2VjcmV0")
    with pytest.raises(BadConfig, match=r"pip install '\.\[lexe\]'"):
        LexeWallet.from_file("lexe:mainnet", path)
    with pytest.raises(BadConfig, match=r"^wallet\.url: 'https://lexe\.app' is not one of lexe:mainnet"):
        LexeWallet.from_file("https://lexe.app", path)


@with_client
def test_the_documented_methods_are_those_of_the_installed_client():
    import lexe

    for name, call in RECORDED.calls.items():
        parameters = inspect.signature(getattr(lexe.AsyncLexeWallet, name)).parameters
        assert [one for one in parameters if one != "self"] == call["request"]
    for name, members in RECORDED.types.items():
        kind = getattr(lexe, name)
        has = {"enum": [one.name for one in kind]} if "enum" in members else dict(inspect.signature(kind).parameters)
        assert has == members if "enum" in members else list(has) == list(members)


@with_client
def test_credentials_that_are_none_are_refused_and_not_shown(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "lexe.token"
    path.write_text("SECRET-that-is-none")
    with pytest.raises(BadConfig, match="no client credentials") as told:
        LexeWallet.from_file("lexe:mainnet", path)
    assert "SECRET" not in str(told.value) + caplog.text and told.value.__cause__ is None


@with_client
async def test_a_node_that_its_own_client_does_not_reach_is_a_lost_link(unused_tcp_port):
    import lexe

    config = lexe.WalletConfig.regtest(use_sgx=False, gateway_url=f"https://127.0.0.1:{unused_tcp_port}")
    credentials = lexe.Credentials.from_root_seed(lexe.RootSeed.generate())
    node = lexe.AsyncLexeWallet.without_db(config, credentials)
    wallet = LexeWallet(node, "bcrt", lambda: node.provision(credentials))
    for call in (wallet.info(), wallet.balance_msat(), wallet.lookup("ab" * 32, "out")):
        with pytest.raises(LinkLost, match=r"^wallet: Lexe: "):
            await call
    await wallet.close()
