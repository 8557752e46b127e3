"""A customer pays a provider for chunks: once each, for exactly what is due, with a receipt that stands up."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
import time

import pytest

from nodewire.errors import (
    BadInvoice,
    BadZap,
    Busy,
    LinkLost,
    NotAllowed,
    NotFound,
    OverBudget,
    PaymentFailed,
    TimedOut,
)
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts import debts, zaps
from nodewire.pay.accounts.debts import JobBudget
from nodewire.pay.accounts.dues import CreditTerms
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.payer import Fees, Payer, ZapTerms
from simnet.wallet import SimWallet
from tests.pay.pay_market import JOB, RELAYS, Market

RICH_MSAT = 1_000_000


@pytest.fixture
async def market(open_wallet, tmp_path):
    ticks = itertools.count()  # no two requests are signed in the same second
    market = Market(await open_wallet(0), await open_wallet(RICH_MSAT), tmp_path, lambda: time.time() + next(ticks))
    yield market
    market.close()


async def test_a_chunk_is_paid_cleared_and_receipted(market):
    market.deliver()
    debt = await market.pay()
    assert (debt.state, debt.amount_msat) == ("paid", 21_000)
    assert market.provider_book.owed_msat(market.customer.public) == 21_000
    assert await market.settle(1) == []
    assert market.provider_book.owed_msat(market.customer.public) == 0
    assert (market.provider_book.due(market.key()).state, market.provider_book.unreceipted()) == ("settled", [])
    ((event, relays),) = market.relays.events
    assert relays == RELAYS
    counted = zaps.check_receipt(event, nostr_pubkey=market.provider.public, network="bcrt", key=market.key())
    assert (counted.invoice.payment_hash, event.tag("preimage")) == (debt.payment_hash, debt.preimage)


async def test_a_paid_chunk_is_not_paid_again(market):
    market.deliver()
    first = await market.pay()
    assert await market.pay() == first
    assert await market.payee_wallet.balance_msat() == 21_000


async def test_parallel_payments_of_one_chunk_are_one(market):
    market.deliver()
    paid = await asyncio.gather(*(market.pay() for _ in range(10)))
    assert len(set(paid)) == 1
    assert await market.payee_wallet.balance_msat() == 21_000
    assert len(market.provider_book.quotes(market.key())) == 1


@pytest.mark.parametrize("alone", [True, False])
async def test_chunks_are_paid_together_unless_each_is_to_be_paid_alone(market, alone):
    for chunk in range(3):
        market.deliver(chunk, 1_000 + chunk)
    await asyncio.gather(*(market.pay(chunk, 1_000 + chunk, terms=ZapTerms(alone=alone)) for chunk in range(3)))
    assert await market.payee_wallet.balance_msat() == 3_003
    assert market.customer_book.spent(job=JOB).paid_msat == 3_003
    assert await market.settle(3 if alone else 1) == []
    assert market.provider_book.earned_msat(job=JOB) == 3_003
    assert len(market.relays.events) == (3 if alone else 1)


async def test_a_payment_is_of_whole_units_and_what_is_more_pays_the_next_chunk_on_both_sides(market, monkeypatch):
    info = dataclasses.replace(await market.payer_wallet.info(), unit_msat=1_000, least_msat=1_000)

    async def whole_sats():
        return info

    monkeypatch.setattr(market.payer_wallet, "info", whole_sats)
    for chunk in range(3):
        market.deliver(chunk, 6)
        assert (await market.pay(chunk, 6)).state == "paid"
        if not chunk:
            assert await market.settle(1) == []
        assert market.provider_book.due(market.key(chunk)).state == "settled"
    assert await market.payee_wallet.balance_msat() == 1_000
    tab = market.payer.tab(market.provider.public)
    assert (tab.ahead_msat, market.provider_book.balance_msat(market.customer.public)) == (982, 982)
    market.deliver(3, 2_000)
    assert (await market.pay(3, 2_000)).state == "paid"  # 1,018 msat were missing: two sats
    await market.settle(1)
    assert await market.payee_wallet.balance_msat() == 3_000
    assert market.provider_book.balance_msat(market.customer.public) == 982


async def test_a_chunk_that_the_balance_pays_in_part_is_named_with_no_less_than_it_costs(market, monkeypatch):
    info = dataclasses.replace(await market.payer_wallet.info(), unit_msat=1_000, least_msat=1_000)

    async def whole_sats():
        return info

    monkeypatch.setattr(market.payer_wallet, "info", whole_sats)
    for chunk, amount_msat in ((0, 100), (1, 5_200)):
        market.deliver(chunk, amount_msat)
        assert (await market.pay(chunk, amount_msat)).state == "paid"
        await market.settle(1)
    tab, customer = market.payer.tab(market.provider.public), market.customer.public
    assert tab.paid_msat == market.provider_book.paid_msat(customer) == 7_000
    assert tab.ahead_msat == market.provider_book.balance_msat(customer) == 1_700


async def test_claims_that_come_in_another_order_than_they_were_made_leave_both_books_alike(market, monkeypatch):
    """Each side spends the balance on what it hears of first. So one holds a chunk for owed that the other has paid."""
    info = dataclasses.replace(await market.payer_wallet.info(), unit_msat=1_000, least_msat=1_000)

    async def whole_sats():
        return info

    monkeypatch.setattr(market.payer_wallet, "info", whole_sats)
    market.deliver(0, 990)
    await market.pay(0, 990)
    await market.settle(1)
    for chunk in (1, 2):
        market.deliver(chunk, 10)
    assert market.provider_book.due(market.key(1)).state == "settled"
    for chunk in (2, 1):
        assert (await market.pay(chunk, 10)).state == "paid"
    await market.settle(1)
    tab, customer = market.payer.tab(market.provider.public), market.customer.public
    assert market.provider_book.owed_msat(customer) == tab.owed_msat == 0
    assert market.provider_book.balance_msat(customer) == tab.ahead_msat == 990
    with pytest.raises(NotAllowed, match="paid"):  # nothing at all is owed now
        await market.quote(request(market, key=market.key(1), amount_msat=10), 10)


async def test_what_falls_due_while_a_lump_is_on_its_way_waits_for_the_next_lump(market):
    """A payment takes as long as some chunks. They are within credit when it has arrived."""
    credit, arrived, paying = CreditTerms(1_000, 10_000), asyncio.Event(), []
    market.payer._wallet = Slow(market.payer_wallet, arrived)
    for chunk in range(9):
        market.deliver(chunk, 100)
        paying.append(asyncio.create_task(market.pay(chunk, 100, terms=ZapTerms(credit=credit))))
        while chunk == 5 and not market.customer_book.under_way():  # 600 msat are more than half of the credit
            await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    arrived.set()
    await asyncio.gather(*paying)
    assert await market.payee_wallet.balance_msat() == 600
    assert market.payer.tab(market.provider.public).owed_msat == 300


class Slow:
    """A wallet whose payments take until they are told to arrive."""

    def __init__(self, wallet, arrived):
        self._wallet, self._arrived = wallet, arrived

    def __getattr__(self, name):
        return getattr(self._wallet, name)

    async def pay(self, bolt11, **options):
        await self._arrived.wait()
        return await self._wallet.pay(bolt11, **options)


async def test_a_lump_is_of_what_the_payees_wallet_takes_whatever_the_payers_does(market):
    """The payee's wallet may take no others, as that of an LNbits does."""
    terms = ZapTerms(credit=CreditTerms(1_000, 10_000, unit_msat=1_000))
    for chunk in range(2):
        market.deliver(chunk, 333)
        debt = await market.pay(chunk, 333, terms=terms)
    assert (debt.state, debt.payment.amount_msat) == ("paid", 1_000)
    await market.settle(1)
    assert await market.payee_wallet.balance_msat() == 1_000
    tab = market.payer.tab(market.provider.public)
    assert (tab.ahead_msat, market.provider_book.balance_msat(market.customer.public)) == (334, 334)


async def test_tills_that_share_a_wallet_count_what_their_own_invoices_brought(open_wallet, tmp_path):
    """Each follows all that comes into the wallet, and keeps a cursor of its own."""
    payer, shared = await open_wallet(RICH_MSAT), await open_wallet(0)
    made = []
    for name in ("one", "another"):
        (tmp_path / name).mkdir()
        made.append(Market(shared, payer, tmp_path / name))
    for chunk, (market, amount_msat) in enumerate(zip(made * 2, (1_000, 300, 21_000, 5_000), strict=True)):
        market.deliver(chunk, amount_msat)
        assert (await market.pay(chunk, amount_msat)).state == "paid"
    for market in made:
        async with asyncio.timeout(10):
            assert await market.settle(4) == []
    assert [market.provider_book.earned_msat() for market in made] == [22_000, 5_300]
    assert [market.provider_book.paid_msat(market.customer.public) for market in made] == [22_000, 5_300]
    assert [len(market.relays.events) for market in made] == [2, 2]
    tips = [market.provider_book.unbilled.tips_msat() for market in made]
    assert tips == [0, 0]
    assert await shared.balance_msat() == 27_300
    for market in made:
        market.close()


async def test_the_same_request_gets_the_same_invoice_and_another_request_another(market):
    market.deliver()
    requests = [request(market, created_at=n) for n in (1, 2)]
    first, second = [await market.quote(r, 21_000) for r in requests]
    assert await market.quote(requests[0], 21_000) == first != second


async def test_invoices_for_one_chunk_are_bounded(market):
    market.deliver()
    for n in range(8):
        await market.quote(request(market, created_at=n), 21_000)
    with pytest.raises(Busy):
        await market.quote(request(market, created_at=9), 21_000)


def request(market, *, keys=None, key=None, amount_msat=21_000, created_at=1):
    keys, key = keys or market.customer, key or market.key()
    return zaps.build_request(keys, key, amount_msat, relays=RELAYS, lnurl=None, created_at=created_at)


async def test_the_till_takes_only_what_is_due_from_who_owes_it(market):
    market.deliver()
    stranger = Keys(b"\x07" * 32)
    refused = [
        (request(market, key=market.key(chunk=1)), 21_000, NotFound),
        (request(market, key=debts.Key("77" * 32, market.provider.public, 0)), 21_000, NotFound),
        (request(market, key=debts.Key(JOB, stranger.public, 0)), 21_000, BadZap),
        (request(market, keys=stranger), 21_000, BadZap),
        (request(market, amount_msat=20_999), 20_999, BadZap),
        (request(market), 20_999, BadZap),
    ]
    for event, amount_msat, error in refused:
        with pytest.raises(error):
            await market.quote(event, amount_msat)
    await market.pay()
    await market.settle(1)
    with pytest.raises(NotAllowed, match="paid"):
        await market.quote(request(market), 21_000)


async def test_the_operators_policy_is_asked(market):
    market.deliver()

    def refuse(request):
        raise NotAllowed("customer", request.sender)

    till = market.till_on(market.payee_wallet, expect=refuse)
    with pytest.raises(NotAllowed, match="customer"):
        await till.quote(request(market).to_json(), 21_000)


async def test_a_receipt_waits_for_a_relay(market):
    market.deliver()
    await market.pay()
    market.relays.is_down = True
    (error,) = await market.settle(1)
    assert isinstance(error, LinkLost)
    receipt = market.provider_book.receipt(market.provider_book.due(market.key()).payment_hash)
    assert market.provider_book.receipts.standing(receipt) == {RELAYS[0]: ("waiting", "")}
    market.relays.is_down = False
    assert await market.till.publish_receipts() == []
    assert await market.till.publish_receipts() == []
    assert [event.id for event, _ in market.relays.events] == [receipt]
    assert market.provider_book.receipts.standing(receipt) == {RELAYS[0]: ("stands", "")}


async def test_a_running_till_tells_of_each_settlement_and_finds_what_it_missed(market):
    market.deliver(0)
    market.deliver(1)
    await market.pay(0)  # before the till runs
    told = asyncio.Queue()
    running = asyncio.create_task(market.till.run(told.put_nowait))
    assert (await told.get()).key == market.key(0)
    await market.pay(1)
    assert (await told.get()).key == market.key(1)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_a_job_never_costs_more_than_its_budget(market):
    for chunk in range(2):
        market.deliver(chunk)
    budget = JobBudget(30_000, frozenset({market.key().payee}))
    await market.pay(0, budget=budget)
    with pytest.raises(OverBudget):
        await market.pay(1, budget=budget)
    assert await market.payee_wallet.balance_msat() == 21_000


async def test_a_failed_payment_is_booked_and_may_be_tried_again(market, open_wallet):
    market.deliver()
    poor = Payer(market.customer, await open_wallet(10), market.customer_book)
    with pytest.raises(PaymentFailed, match="10 msat, 21031 msat needed"):
        await poor.pay(market.key(), 21_000, market.quote, relays=RELAYS)
    assert market.customer_book.debt(market.key()).state == "failed"
    assert (await market.pay()).state == "paid"


async def test_a_fee_beyond_the_cap_fails_the_payment(market):
    market.deliver()
    payer = Payer(market.customer, market.payer_wallet, market.customer_book, fees=Fees(flat_msat=1, ppm=1))
    with pytest.raises(PaymentFailed, match="max_fee_msat"):
        await payer.pay(market.key(), 21_000, market.quote, relays=RELAYS)
    assert market.customer_book.debt(market.key()).state == "failed"


async def test_an_invoice_that_is_not_what_was_asked_for_is_not_paid(market):
    async def cheat(event, amount_msat):
        return await market.payee_wallet.invoice(amount_msat, description="something else", expiry_s=60)

    async def overcharge(event, amount_msat):
        return await market.payee_wallet.invoice(amount_msat + 1, description=event.to_json(), expiry_s=60)

    for fetch in (cheat, overcharge):
        with pytest.raises(BadInvoice):
            await market.pay(fetch=fetch)
    assert market.customer_book.debt(market.key()).state == "planned"
    assert await market.payer_wallet.balance_msat() == RICH_MSAT


class Lossy:
    """A wallet that goes out of reach in a `pay`, before or after the money has moved."""

    def __init__(self, wallet, before):
        self._wallet, self._before = wallet, before

    def __getattr__(self, name):
        return getattr(self._wallet, name)

    async def pay(self, bolt11, *, max_fee_msat, timeout_s=60.0):
        if not self._before:
            await self._wallet.pay(bolt11, max_fee_msat=max_fee_msat, timeout_s=timeout_s)
        raise LinkLost("wallet", "gone")

    async def lookup(self, payment_hash, direction):
        raise LinkLost("wallet", "gone")


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("again", ["pay", "recover"])
async def test_a_lost_answer_is_looked_up_before_anything_is_paid(market, before, again):
    market.deliver()
    market.payer._wallet = Lossy(market.payer_wallet, before)
    with pytest.raises(LinkLost):
        await market.pay()
    assert market.customer_book.debt(market.key()).state == "paying"
    market.payer._wallet = market.payer_wallet
    if again == "pay":
        await market.pay()
    else:
        assert [debt.key for debt in await market.payer.recover()] == [market.key()]
    assert market.payer.unpaid() == []
    assert market.customer_book.debt(market.key()).state == "paid"
    assert await market.payee_wallet.balance_msat() == 21_000


async def test_a_payment_in_flight_is_left_alone_until_it_ends(market):
    async def hold(event, amount_msat):
        return await market.payee_wallet.hold_invoice(
            amount_msat, payment_hash=hold_hash, description=event.to_json(), expiry_s=60
        )

    preimage = os.urandom(32).hex()
    hold_hash = zaps.invoices.hash_of(preimage)
    wallet = market.payer_wallet
    market.payer._wallet = Impatient(wallet)
    with pytest.raises(TimedOut):
        await market.pay(fetch=hold)
    assert await market.payer.recover() == []
    (debt,) = market.payer.unpaid()
    assert debt.state == "paying"
    await market.payee_wallet.settle_hold(preimage)
    assert [debt.state for debt in await market.payer.recover()] == ["paid"]
    assert market.payer.unpaid() == []
    assert await market.payee_wallet.balance_msat() == 21_000


class Impatient:
    def __init__(self, wallet):
        self._wallet = wallet

    def __getattr__(self, name):
        return getattr(self._wallet, name)

    async def pay(self, bolt11, *, max_fee_msat, timeout_s=60.0):
        return await self._wallet.pay(bolt11, max_fee_msat=max_fee_msat, timeout_s=0.0)


async def test_a_till_on_another_wallet_hears_what_is_paid_there_and_goes_on_where_it_was_on_the_first(
    open_wallet, tmp_path
):
    """Each wallet's cursor is its own. One that was asked with the other's would tell of nothing."""
    payer, ledger = await open_wallet(RICH_MSAT), Ledger(tmp_path / "provider.db")
    first, busy = await open_wallet(0), await open_wallet(0)
    seen = []
    for wallet, count in ((busy, 3), (first, 2), (busy, 1), (first, 1)):
        market = Market(wallet, payer, tmp_path)
        market.provider_book.close()
        market.provider_book = ledger
        market.till = market.till_on(wallet)
        for _ in range(count):
            chunk = len(seen)
            market.deliver(chunk)
            await market.pay(chunk)
            async with asyncio.timeout(10):
                await market.settle(1)
            seen.append(ledger.due(market.key(chunk)).state)
        market.customer_book.close()
    assert (seen, ledger.unreceipted()) == (["settled"] * 7, [])
    assert [await one.balance_msat() for one in (busy, first)] == [4 * 21_000, 3 * 21_000]
    ledger.close()


async def test_a_till_on_another_wallet_gives_out_no_invoice_of_the_first(market, open_wallet):
    market.deliver()
    asked = request(market)
    old = await market.quote(asked, 21_000)
    moved = market.till_on(await open_wallet(0))
    new = await moved.quote(asked.to_json(), 21_000)
    assert old.payee != new.payee == (await moved.quote(asked.to_json(), 21_000)).payee
    assert await market.quote(asked, 21_000) == old


class Steps:
    """Counts the steps of both sides that leave a mark, and kills the process before one of them.

    Nothing leaves a mark between two steps, so dying before each is dying after each, too.
    """

    def __init__(self, last):
        self._left = last

    def before(self, target, *names):
        for name in names:
            setattr(target, name, self._wrap(getattr(target, name)))

    def _wrap(self, method):
        def mortal(*arguments, **options):
            if self._left == 0:
                os._exit(9)
            self._left -= 1
            return method(*arguments, **options)

        return mortal


def life(url, tokens, directory, last, number):
    """The `number`-th life of a customer and a provider, who die together after `last` steps (never: -1)."""

    async def trade():
        steps = Steps(last)
        # Later lives have later clocks: whatever they sign anew is another event than before.
        wallets = SimWallet(url, tokens[0]), SimWallet(url, tokens[1])
        market = Market(*wallets, directory, lambda: time.time() + 10 * number)

        async def publish(event, relays):
            with (directory / "relay").open("a") as file:
                file.write(event.id + "\n")

        market.till._courier._publish = publish
        steps.before(market.payer_wallet, "pay", "lookup")
        steps.before(market.payee_wallet, "invoice")
        steps.before(market.customer_book, "plan", "begin", "record")
        steps.before(market.provider_book, "quoted", "settled", "receipted")
        steps.before(market.provider_book.receipts, "enter", "end")
        steps.before(market.till._courier, "_publish")
        market.deliver()
        await market.payer.recover()
        await market.pay()
        if market.provider_book.due(market.key()).state == "due":
            await market.settle(1)
        await market.till.publish_receipts()
        os._exit(0)

    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        asyncio.run(trade())
    finally:
        os._exit(1)


def test_killed_between_any_two_steps_both_sides_pay_and_receipt_once(simnet_url, tmp_path):
    died, rounds = 0, 0
    for first in range(100):
        for second in (None, 1, 3) if first % 4 == 3 else (None,):
            directory = tmp_path / f"{first}-{second}"
            directory.mkdir()
            tokens = asyncio.run(accounts(simnet_url))
            deaths = [first, -1] if second is None else [first, second, -1]
            codes = [life(simnet_url, tokens, directory, last, n) for n, last in enumerate(deaths)]
            assert codes[-1] == 0, (deaths, codes)
            died += codes.count(9)
            asyncio.run(paid_once(simnet_url, tokens, directory))
            rounds += 1
        if codes[0] == 0:
            break
    assert died >= rounds > 14


async def accounts(url):
    tokens = []
    for opening_msat in (0, RICH_MSAT):
        wallet, token = await SimWallet.open_account(url, "mortal", opening_msat)
        tokens.append(token)
        await wallet.close()
    return tokens


async def paid_once(url, tokens, directory):
    payee, payer = (SimWallet(url, token) for token in tokens)
    balance_msat, left_msat = await payee.balance_msat(), await payer.balance_msat()
    await payee.close()
    await payer.close()
    customer_book, provider_book = Ledger(directory / "customer.db"), Ledger(directory / "provider.db")
    spent = customer_book.spent()
    assert balance_msat == 21_000 == spent.paid_msat
    assert left_msat == RICH_MSAT - 21_000 - spent.fees_msat
    assert customer_book.unpaid() == []
    assert provider_book.unreceipted() == [] and provider_book.receipts.relays() == []
    assert provider_book.earned_msat() == 21_000
    assert not provider_book.in_debt(Keys(b"\x01" * 32).public, time.time() + 10_000)
    assert len(set((directory / "relay").read_text().split())) == 1
    customer_book.close()
    provider_book.close()
