"""A customer pays by nutzap from its ecash: to the satoshi, once, wherever it dies, and over Lightning where it cannot.

The mint and the relay are real. The provider's desk hears and claims, and both books are compared.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from nodewire.customer.payments.receipts import ZapReceipts
from nodewire.errors import LinkLost, NotFound, PaymentFailed, TimedOut
from nodewire.nostr.keys import Keys
from nodewire.nostr.nips import nip61
from nodewire.nostr.nips.nip01 import Filter
from nodewire.nostr.pool import Pool
from nodewire.pay.accounts import payer as paying
from nodewire.pay.accounts import splits
from nodewire.pay.accounts.debts import Key
from nodewire.pay.accounts.dues import CreditTerms
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.payer import Fees, Payer, ZapTerms
from nodewire.pay.accounts.splits import SplitZap
from nodewire.pay.by_hand import statement
from nodewire.pay.nutzaps import wallet as nutzap_wallet
from nodewire.pay.nutzaps.wallet import NutzapWallet
from nodewire.pay.wallets.cashu import CashuWallet
from relay import Config, serve
from tests.pay.mint_process import fund, needs_mint, run_mint
from tests.pay.nutzap_market import CUSTOMER, LOCK, PROVIDER, Shop

JOB = "ab" * 32
KEY = Key(JOB, PROVIDER.public, 0)


class Killed(Exception):
    """The process died here."""


class Buyer:
    """The customer: its purse and its ledger are files, and each `open` is a process of its own."""

    def __init__(self, folder, shop, stack):
        self.folder, self.shop, self.stack = folder, shop, stack
        self.asked = []

    async def open(self, relay="", keys=CUSTOMER, **options):
        """`(payer, wallet)` of a new process."""
        wallet = CashuWallet(self.shop.url, self.folder / "customer.purse")
        self.stack.push_async_callback(wallet.close)
        ledger = Ledger(self.folder / "customer.db")
        self.stack.callback(ledger.close)
        pool = await self.stack.enter_async_context(Pool([relay or self.shop.relay], keys))
        own = NutzapWallet(wallet, keys, pool)
        return Payer(keys, own, ledger, network="bc", route=own.route, **options), wallet

    async def endpoint(self, request, amount_msat):
        """The provider's LNURL endpoint, which is away."""
        self.asked.append(amount_msat)
        raise LinkLost("lnurl", "away")

    async def pay(self, payer, key=KEY, amount_msat=7_000, **options):
        return await payer.pay(key, amount_msat, self.endpoint, relays=("wss://a.example",), **options)


@pytest.fixture
async def stack():
    async with AsyncExitStack() as one:
        yield one


async def market(stack, mint, tmp_path, sat=1_000):
    running = await stack.enter_async_context(serve(Config(db=tmp_path / "relay.sqlite", port=0)))
    shop = Shop(tmp_path, mint.url, running.url)
    stack.callback(shop.ledger.close)
    buyer = Buyer(tmp_path, shop, stack)
    wallet = CashuWallet(mint.url, tmp_path / "customer.purse")
    await fund(mint, wallet, sat * 1_000)
    await wallet.close()
    return shop, buyer


@pytest.fixture
async def trade(stack, mint, tmp_path):
    """`(shop, buyer)`: the provider, and a customer with 1,000 satoshis of ecash."""
    return await market(stack, mint, tmp_path) if mint is not None else (None, None)


async def until(holds):
    while not holds():
        await asyncio.sleep(0.02)


async def published(shop, count=1):
    """The nutzaps on the relay."""
    async with Pool([shop.relay], CUSTOMER) as pool:
        while len(found := await pool.fetch([Filter(kinds={nip61.NUTZAP})])) < count:
            await asyncio.sleep(0.02)
    return found


async def heard(shop):
    """Return when the relay has what the provider takes."""
    async with Pool([shop.relay], CUSTOMER) as pool:
        while not await pool.fetch([Filter(kinds={nip61.INFO})]):
            await asyncio.sleep(0.02)


@needs_mint
async def test_a_chunk_is_paid_by_nutzap_to_the_satoshi_and_both_books_say_the_same(trade):
    shop, buyer = trade
    shop.owe(KEY, 7_250)
    payer, wallet = await buyer.open()
    async with shop.open():
        await heard(shop)
        credit = CreditTerms(0, 0, 1_000)
        debt = await buyer.pay(payer, amount_msat=7_250, terms=ZapTerms(credit=credit))
        await until(lambda: shop.ledger.due(KEY).state == "settled")
    assert debt.state == "paid" and debt.fee_msat == 0 and buyer.asked == []
    assert shop.ledger.due(KEY).payment_hash == debt.payment_hash
    assert await wallet.balance_msat() == 992_000
    tab = payer.tab(PROVIDER.public)
    assert (tab.paid_msat, tab.ahead_msat) == (8_000, 750)
    assert shop.ledger.paid_msat(CUSTOMER.public) == 8_000 and shop.ledger.balance_msat(CUSTOMER.public) == 750
    (event,) = await published(shop)
    assert event.tag("e") == JOB and event.tag("chunk") == "0" and event.tag("unit") == "sat"
    assert shop.ledger.receipt(debt.payment_hash) == event.id
    book = ZapReceipts("bc")
    book.note(event)
    assert book._ids == {(PROVIDER.public, debt.payment_hash): event.id}
    # The next chunk is of the balance, in both books.
    later = Key(JOB, PROVIDER.public, 1)
    shop.owe(later, 700)
    assert (await buyer.pay(payer, later, 700)).state == "paid" and shop.ledger.due(later).state == "settled"
    (_, entry) = statement.read(payer._ledger, 9)
    assert entry.state == "settled" and entry.at_s > time.time() - 600


@needs_mint
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["swap", "_publish", "states", "active"])
async def test_a_customer_that_dies_at_any_step_pays_once(trade, monkeypatch, step, when):
    shop, buyer = trade
    shop.owe(KEY, 7_000)
    payer, wallet = await buyer.open()
    owner = payer._wallet if step == "_publish" else wallet._mint
    real = getattr(owner, step)

    async def method(*args, **options):
        if when == "after":
            await real(*args, **options)
        raise Killed

    async with shop.open():
        await heard(shop)
        monkeypatch.setattr(owner, step, method)
        with pytest.raises(Killed):
            await buyer.pay(payer)
        again, purse = await buyer.open()
        await again.recover()
        assert (await buyer.pay(again)).state == "paid"
        await until(lambda: shop.ledger.due(KEY).state == "settled")
    assert await purse.balance_msat() == 993_000 and shop.ledger.paid_msat(CUSTOMER.public) == 7_000
    assert len(await published(shop)) == 1 and not purse.purse.operations("lock") and buyer.asked == []


@needs_mint
async def test_a_provider_that_is_away_is_paid_once_and_nothing_else_is_paid_meanwhile(trade, monkeypatch):
    shop, buyer = trade
    shop.owe(KEY, 7_000)
    payer, wallet = await buyer.open()
    monkeypatch.setattr(paying, "_WAIT_S", 0.3)
    async with shop.open():
        await heard(shop)
    for _ in range(3):
        with pytest.raises(TimedOut):
            await buyer.pay(payer)
    again, _ = await buyer.open()
    assert await again.recover() == []
    assert [debt.state for debt in again.unpaid()] == ["paying"]
    monkeypatch.undo()
    async with shop.open():
        await until(lambda: shop.ledger.due(KEY).state == "settled")
        assert (await buyer.pay(again)).state == "paid"
    assert len(await published(shop)) == 1 and await wallet.balance_msat() == 993_000
    assert shop.ledger.paid_msat(CUSTOMER.public) == 7_000 and buyer.asked == []


@needs_mint
async def test_a_relay_that_is_away_has_the_same_nutzap_when_it_is_back(trade, monkeypatch):
    shop, buyer = trade
    shop.owe(KEY, 7_000)
    payer, _ = await buyer.open()
    monkeypatch.setattr(paying, "_WAIT_S", 0.3)

    async def away(*_):
        raise LinkLost("relay", "away")

    async with shop.open():
        await heard(shop)
        with monkeypatch.context() as patch:
            patch.setattr(Pool, "publish_at", away)
            with pytest.raises(TimedOut):
                await buyer.pay(payer)
        again, _ = await buyer.open()
        assert [debt.key for debt in await again.recover()] in ([], [KEY])
        monkeypatch.setattr(paying, "_WAIT_S", 60.0)
        assert (await buyer.pay(again)).state == "paid"
    assert len(await published(shop)) == 1


@needs_mint
async def test_too_little_ecash_is_a_failure_and_another_nutzap_pays_later(trade, mint):
    shop, buyer = trade
    shop.owe(KEY, 2_000_000)
    payer, wallet = await buyer.open()
    async with shop.open():
        await heard(shop)
        with pytest.raises(PaymentFailed, match="1000 sat are there"):
            await buyer.pay(payer, amount_msat=2_000_000)
        assert await wallet.balance_msat() == 1_000_000
        await fund(mint, wallet, 1_500_000)
        assert (await buyer.pay(payer, amount_msat=2_000_000)).state == "paid"
        await until(lambda: shop.ledger.due(KEY).state == "settled")
    assert await wallet.balance_msat() == 500_000 and len(await published(shop)) == 1


@needs_mint
async def test_a_mint_that_never_signed_has_failed_and_the_ecash_is_free_again(trade, monkeypatch):
    """Its money went another way meanwhile, as in a copy of the purse: the mint refuses, and says so of the proofs."""
    shop, buyer = trade
    payer, wallet = await buyer.open()
    async with shop.open():
        await heard(shop)
        real = wallet._mint.swap

        async def worn(inputs, outputs):
            return await real([{**one, "C": "02" + "11" * 32} for one in inputs], outputs)

        with monkeypatch.context() as patch:
            patch.setattr(wallet._mint, "swap", worn)
            with pytest.raises(PaymentFailed):
                await buyer.pay(payer, amount_msat=8_000)
        assert await wallet.balance_msat() == 1_000_000
        assert (await buyer.pay(payer, amount_msat=8_000)).state == "paid"
    assert len(await published(shop)) == 1


@needs_mint
async def test_where_no_nutzap_is_taken_the_endpoint_is_asked(trade, stack, tmp_path, monkeypatch):
    shop, buyer = trade
    payer, wallet = await buyer.open()
    with pytest.raises(LinkLost):
        await buyer.pay(payer)  # it says nothing of nutzaps
    other = await stack.enter_async_context(serve(Config(db=tmp_path / "other.sqlite", port=0)))
    info = nip61.build_info(
        PROVIDER, relays=[shop.relay], mints=[(shop.url, "sat")], pubkey=LOCK.public, created_at=int(time.time())
    )
    async with Pool([other.url], PROVIDER) as pool:
        await pool.publish(info)
    elsewhere, _ = await buyer.open(other.url)
    with pytest.raises(LinkLost):
        await buyer.pay(elsewhere)  # it reads no relay of the customer's
    async with shop.open():
        await heard(shop)
        fresh, _ = await buyer.open()
        with pytest.raises(LinkLost):
            await buyer.pay(fresh, terms=ZapTerms(is_asked=True))
        odd = Key("cd" * 32, PROVIDER.public, 0)
        with pytest.raises(LinkLost):
            await buyer.pay(fresh, odd, 1_500, terms=ZapTerms(alone=True))  # no whole satoshis
    monkeypatch.setattr(shop, "url", "https://other.example")
    assert buyer.asked == [7_000, 7_000, 7_000, 1_500] and await wallet.balance_msat() == 1_000_000


@needs_mint
async def test_an_ordinary_zap_of_a_customer_is_a_nutzap_and_its_deposit(trade):
    shop, buyer = trade
    shop.owe(KEY, 5_000)
    payer, wallet = await buyer.open()
    zap = SplitZap("cd" * 32, (splits.Share(PROVIDER.public, "", 20_000),), ("wss://a.example",), comment="ahead")

    async def where(_):
        return "https://pay.example/lnurl"

    async with shop.open():
        await heard(shop)
        for _ in range(2):
            (done,) = await splits.pay(payer, zap, where, network="bc", allow_private=False)
            assert done.error is None and done.paid.fee_msat == 0
        await until(lambda: shop.ledger.due(KEY).state == "settled")
    assert shop.ledger.deposit_msat(CUSTOMER.public) == 20_000 and await wallet.balance_msat() == 980_000
    assert shop.ledger.balance_msat(CUSTOMER.public) == 15_000
    assert [event.content for event in await published(shop)] == ["ahead"]


@needs_mint
@pytest.mark.parametrize("fee_ppk", ["100", "300"])
async def test_a_mints_fee_is_the_customers_and_the_provider_has_just_the_amount(stack, tmp_path, fee_ppk):
    (tmp_path / "mint").mkdir()
    with run_mint(tmp_path / "mint", MINT_INPUT_FEE_PPK=fee_ppk) as mint:
        shop, buyer = await market(stack, mint, tmp_path, 500)
        payer, wallet = await buyer.open(fees=Fees(100_000))
        spent_msat = 0
        async with shop.open():
            await heard(shop)
            for number, amount_msat in enumerate((1_000, 2_000, 21_000, 63_000)):
                key = Key(JOB, PROVIDER.public, number)
                shop.owe(key, amount_msat)
                debt = await buyer.pay(payer, key, amount_msat, terms=ZapTerms(alone=True))
                spent_msat += amount_msat + debt.fee_msat
                await until(lambda key=key: shop.ledger.due(key).state == "settled")
                assert shop.ledger.balance_msat(CUSTOMER.public) == 0
        assert shop.ledger.paid_msat(CUSTOMER.public) == 87_000 < spent_msat
        assert await wallet.balance_msat() == 500_000 - spent_msat and buyer.asked == []
        await wallet.close()


@needs_mint
async def test_a_draft_that_nobody_begins_is_forgotten_and_is_not_begun_late(trade, monkeypatch):
    shop, buyer = trade
    payer, wallet = await buyer.open()
    async with shop.open():
        await heard(shop)
        with monkeypatch.context() as patch:
            patch.setattr(nutzap_wallet, "EXPIRY_S", 1)
            own = payer._wallet
            fetch = await own.route(PROVIDER.public, 7_000)
            invoice = await fetch(_zap_request(), 7_000)
        with monkeypatch.context() as patch:
            late_s = time.time() + 10
            patch.setattr(nutzap_wallet.time, "time", lambda: late_s)
            late = await own.pay(invoice.bolt11, max_fee_msat=10_000)
        assert (late.state, late.reason) == ("failed", "the nutzap was drawn up too long ago")
        other = await fetch(_zap_request(), 7_000)
        with wallet.purse.transaction():
            wallet.purse.nutzaps.forget(int(time.time()) + 2 * nutzap_wallet.EXPIRY_S)
        assert wallet.purse.nutzaps.sent(invoice.payment_hash)  # a payment knows it
        with pytest.raises(NotFound):
            wallet.purse.nutzaps.sent(other.payment_hash)


def _zap_request():
    from nodewire.pay.accounts import zaps

    return zaps.build_request(CUSTOMER, KEY, 7_000, relays=["wss://a.example"], lnurl=None, created_at=1)


def test_another_wallet_pays_as_before():
    keys, wallet = Keys.generate(), object()
    payer = nutzap_wallet.open_payer(keys, wallet, Ledger(":memory:"), None, network="bc")
    assert payer._wallet is wallet and payer._route is None


async def test_a_wallet_of_ecash_has_a_way_of_its_own(tmp_path):
    ecash = CashuWallet("http://127.0.0.1:1", tmp_path / "customer.purse")
    payer = nutzap_wallet.open_payer(CUSTOMER, ecash, Ledger(":memory:"), None, network="bc")
    assert payer._wallet is not ecash and payer._route == payer._wallet.route
    await ecash.close()
