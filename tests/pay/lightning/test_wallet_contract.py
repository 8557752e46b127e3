"""What every wallet must do, run against every implementation that is here."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from nodewire.errors import BadInput, NotAllowed, NotFound, OverBudget, PaymentFailed, TimedOut
from nodewire.pay.lightning import invoices
from simnet.wallet import SimWallet

HASH = "ab" * 32
RICH_MSAT = 1_000_000


@pytest.fixture(params=["sim"])
async def pair(request, open_wallet):
    """(payee, payer): the payer has RICH_MSAT."""
    return await open_wallet(0), await open_wallet(RICH_MSAT)


def new_preimage():
    preimage = os.urandom(32).hex()
    return preimage, invoices.hash_of(preimage)


async def invoice_of(wallet, amount_msat=21_000, expiry_s=600):
    return await wallet.make_invoice(amount_msat, description_hash=HASH, expiry_s=expiry_s)


async def hold_of(wallet, amount_msat=21_000, expiry_s=600):
    preimage, payment_hash = new_preimage()
    invoice = await wallet.make_hold_invoice(
        amount_msat, payment_hash=payment_hash, description_hash=HASH, expiry_s=expiry_s
    )
    return preimage, invoice


async def held(payer, payee, invoice):
    """Start a payment of a hold invoice; return once the payee's wallet holds it."""
    task = asyncio.create_task(payer.pay(invoice.bolt11, max_fee_msat=10_000))
    while (await payee.lookup(invoice.payment_hash)).state != "held":
        assert not task.done(), task.result()
    return task


async def test_a_new_wallet_has_what_it_was_opened_with(pair):
    payee, payer = pair
    assert (await payee.balance_msat(), await payer.balance_msat()) == (0, RICH_MSAT)


async def test_an_invoice_says_what_was_asked_for(pair):
    payee, _ = pair
    invoice = await invoice_of(payee, 21_001, 600)
    assert (invoice.amount_msat, invoice.description_hash, invoice.network) == (21_001, HASH, "bcrt")
    assert invoice.expires_at_s - invoice.created_at_s == 600
    assert abs(invoice.created_at_s - time.time()) < 60
    assert (await payee.lookup(invoice.payment_hash)).state == "open"


async def test_invoices_of_one_wallet_come_from_one_node_and_differ_in_hash(pair):
    payee, payer = pair
    first, second, other = await invoice_of(payee), await invoice_of(payee), await invoice_of(payer)
    assert first.payee == second.payee != other.payee
    assert first.payment_hash != second.payment_hash


async def test_paying_moves_the_amount_and_proves_it(pair):
    payee, payer = pair
    invoice = await invoice_of(payee, 21_001)
    payment = await payer.pay(invoice.bolt11, max_fee_msat=1_000)
    assert invoices.hash_of(payment.preimage) == payment.payment_hash == invoice.payment_hash
    assert payment.amount_msat == 21_001
    assert await payee.balance_msat() == 21_001
    assert await payer.balance_msat() == RICH_MSAT - 21_001 - payment.fee_msat


async def test_both_sides_look_up_a_settled_payment(pair):
    payee, payer = pair
    invoice = await invoice_of(payee)
    payment = await payer.pay(invoice.bolt11, max_fee_msat=1_000)
    came, went = await payee.lookup(invoice.payment_hash), await payer.lookup(invoice.payment_hash)
    assert (came.direction, came.state, came.preimage, came.fee_msat) == ("in", "settled", payment.preimage, 0)
    assert (went.direction, went.state, went.preimage) == ("out", "settled", payment.preimage)
    assert went.fee_msat == payment.fee_msat


async def test_paying_again_returns_the_first_payment_and_moves_nothing(pair):
    payee, payer = pair
    invoice = await invoice_of(payee)
    first = await payer.pay(invoice.bolt11, max_fee_msat=1_000)
    before = await payer.balance_msat()
    assert await payer.pay(invoice.bolt11, max_fee_msat=1_000) == first
    assert await payer.balance_msat() == before


async def test_fifty_parallel_payments_of_one_invoice_are_one_movement(pair):
    payee, payer = pair
    invoice = await invoice_of(payee, 21_000)
    payments = await asyncio.gather(*(payer.pay(invoice.bolt11, max_fee_msat=1_000) for _ in range(50)))
    assert len(set(payments)) == 1
    assert await payee.balance_msat() == 21_000
    assert await payer.balance_msat() == RICH_MSAT - 21_000 - payments[0].fee_msat


async def test_an_invoice_that_another_has_paid_cannot_be_paid(pair, open_wallet):
    payee, payer = pair
    third = await open_wallet(RICH_MSAT)
    invoice = await invoice_of(payee)
    await payer.pay(invoice.bolt11, max_fee_msat=1_000)
    with pytest.raises(PaymentFailed):
        await third.pay(invoice.bolt11, max_fee_msat=1_000)
    assert await third.balance_msat() == RICH_MSAT


async def test_what_the_balance_does_not_cover_is_not_paid(pair):
    payee, payer = pair
    invoice = await invoice_of(payee, RICH_MSAT + 1)
    with pytest.raises(PaymentFailed):
        await payer.pay(invoice.bolt11, max_fee_msat=10_000)
    assert await payer.balance_msat() == RICH_MSAT


async def test_a_fee_above_the_cap_is_refused_before_anything_moves(pair):
    payee, payer = pair
    invoice = await invoice_of(payee, 100_000)
    with pytest.raises((OverBudget, PaymentFailed)):
        await payer.pay(invoice.bolt11, max_fee_msat=0)
    assert await payer.balance_msat() == RICH_MSAT


@pytest.mark.parametrize("damage", [lambda s: s[:-1], lambda s: s[:40] + ("q" if s[40] != "q" else "p") + s[41:]])
async def test_a_damaged_invoice_is_refused(pair, damage):
    payee, payer = pair
    invoice = await invoice_of(payee)
    with pytest.raises(BadInput):
        await payer.pay(damage(invoice.bolt11), max_fee_msat=1_000)


async def test_an_invoice_of_nobody_here_finds_no_route(pair):
    _, payer = pair
    invoice = invoices.issue(
        b"\x07" * 32,
        network="bcrt",
        amount_msat=1_000,
        payment_hash="cd" * 32,
        created_at_s=int(time.time()),
        expiry_s=600,
        description_hash=HASH,
    )
    with pytest.raises(PaymentFailed):
        await payer.pay(invoice.bolt11, max_fee_msat=1_000)


async def test_a_wallet_does_not_know_a_hash_it_never_saw(pair):
    payee, payer = pair
    with pytest.raises(NotFound):
        await payer.lookup("00" * 32)
    invoice = await invoice_of(payee)
    with pytest.raises(NotFound):
        await payer.lookup(invoice.payment_hash)


@pytest.mark.parametrize(("amount_msat", "expiry_s"), [(0, 600), (-1, 600), (1_000, 0)])
async def test_an_impossible_invoice_is_not_made(pair, amount_msat, expiry_s):
    with pytest.raises(BadInput):
        await invoice_of(pair[0], amount_msat, expiry_s)


async def test_a_held_payment_is_in_neither_balance_and_settles_with_the_preimage(pair):
    payee, payer = pair
    preimage, invoice = await hold_of(payee)
    task = await held(payer, payee, invoice)
    assert await payee.balance_msat() == 0
    assert await payer.balance_msat() < RICH_MSAT - 20_999
    assert (await payer.lookup(invoice.payment_hash)).state == "held"
    await payee.settle_hold(preimage)
    assert (await task).preimage == preimage
    assert await payee.balance_msat() == 21_000
    await payee.settle_hold(preimage)
    assert await payee.balance_msat() == 21_000


async def test_a_cancelled_hold_gives_everything_back_fee_included(pair):
    payee, payer = pair
    preimage, invoice = await hold_of(payee)
    task = await held(payer, payee, invoice)
    await payee.cancel_hold(invoice.payment_hash)
    with pytest.raises(PaymentFailed):
        await task
    assert await payer.balance_msat() == RICH_MSAT
    assert (await payer.lookup(invoice.payment_hash)).state == "failed"
    with pytest.raises(NotAllowed):
        await payee.settle_hold(preimage)
    await payee.cancel_hold(invoice.payment_hash)


async def test_a_hold_that_nobody_has_paid_cannot_be_settled_but_withdrawn(pair):
    payee, payer = pair
    preimage, invoice = await hold_of(payee)
    with pytest.raises(NotAllowed):
        await payee.settle_hold(preimage)
    await payee.cancel_hold(invoice.payment_hash)
    with pytest.raises(PaymentFailed):
        await payer.pay(invoice.bolt11, max_fee_msat=1_000)


async def test_a_settled_payment_cannot_be_cancelled(pair):
    payee, payer = pair
    invoice = await invoice_of(payee)
    await payer.pay(invoice.bolt11, max_fee_msat=1_000)
    with pytest.raises(NotAllowed):
        await payee.cancel_hold(invoice.payment_hash)


async def test_a_payment_hash_is_used_once(pair):
    payee, _ = pair
    _, invoice = await hold_of(payee)
    with pytest.raises(NotAllowed):
        await payee.make_hold_invoice(1_000, payment_hash=invoice.payment_hash, description_hash=HASH, expiry_s=600)


async def test_a_payer_that_waits_no_longer_is_told_that_it_may_still_settle(pair):
    payee, payer = pair
    preimage, invoice = await hold_of(payee)
    with pytest.raises(TimedOut):
        await payer.pay(invoice.bolt11, max_fee_msat=1_000, timeout_s=0.0)
    await payee.settle_hold(preimage)
    payment = await payer.pay(invoice.bolt11, max_fee_msat=1_000)
    assert payment.preimage == preimage
    assert await payee.balance_msat() == 21_000


async def test_settled_invoices_arrive_in_order_and_resume_after_a_cursor(pair):
    payee, payer = pair
    made = [await invoice_of(payee, 1_000 + n) for n in range(4)]
    for invoice in made:
        await payer.pay(invoice.bolt11, max_fee_msat=1_000)
    seen = await first(payee.settled(), 4)
    assert [(r.payment_hash, r.amount_msat) for r in seen] == [(i.payment_hash, i.amount_msat) for i in made]
    assert all(invoices.hash_of(r.preimage) == r.payment_hash for r in seen)
    assert await first(payee.settled(after=seen[1].cursor), 2) == seen[2:]


async def test_a_listener_hears_what_settles_later_and_only_what_it_was_paid(pair):
    payee, payer = pair
    heard = asyncio.create_task(first(payee.settled(), 1))
    back = await invoice_of(payer, 500)
    _, unpaid = await hold_of(payee)
    await payee.cancel_hold(unpaid.payment_hash)
    invoice = await invoice_of(payee)
    await payer.pay(invoice.bolt11, max_fee_msat=1_000)
    await payee.pay(back.bolt11, max_fee_msat=1_000)
    assert [r.payment_hash for r in await heard] == [invoice.payment_hash]


async def first(stream, count):
    found = []
    async for receipt in stream:
        found.append(receipt)
        if len(found) == count:
            break
    await stream.aclose()
    return found


async def test_a_token_that_the_network_does_not_know_is_told_by_its_file(simnet_url, tmp_path):
    path = tmp_path / "wrong.token"
    path.write_text("00" * 32)
    wallet = SimWallet.from_file(simnet_url, path)
    try:
        with pytest.raises(NotAllowed, match=r"^token: http://.* does not know the one in .*wrong\.token"):
            await wallet.balance_msat()
    finally:
        await wallet.close()


async def test_an_address_of_a_network_that_is_no_url_is_told_as_such():
    with pytest.raises(BadInput, match=r"^wallet: 'simnet' is no URL such as http://"):
        await SimWallet.open_account("simnet", "test")
