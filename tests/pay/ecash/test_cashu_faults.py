"""The wallet of ecash at a mint that lies, is late or forgets, and beside another process of the same purse."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack

import pytest

from nodewire.errors import BadInput, LinkLost, NotFound, PaymentFailed, TimedOut
from nodewire.pay.ecash.mint import MintRefused
from nodewire.pay.ecash.proofs import blanks
from nodewire.pay.ecash.purse import SentPayment
from nodewire.pay.lightning import invoices
from nodewire.pay.wallets.cashu import CashuWallet
from tests.pay.wallets.services import mint_service
from tests.pay.wallets.services.mint_service import MintService, fill

AWAY = (503, {})


@pytest.fixture
async def opened(tmp_path):
    """`await opened(sat, **fees)`: a mint and a wallet there; `opened.again()` opens its purse as another process."""
    async with AsyncExitStack() as stack:

        async def one(sat=0, **fees):
            one.service = await stack.enter_async_context(MintService(**fees).serving())
            wallet = one.again()
            if sat:
                await fill(one.service, wallet, sat)
            return one.service, wallet

        def again():
            wallet = CashuWallet(one.service.url, tmp_path / "purse")
            stack.push_async_callback(wallet.close)
            return wallet

        one.again = again
        yield one


def bill(amount_msat=21_000, age_s=0):
    """Another node's invoice."""
    return invoices.issue(
        os.urandom(32),
        network="bcrt",
        amount_msat=amount_msat,
        payment_hash=os.urandom(32).hex(),
        created_at_s=int(time.time()) - age_s,
        expiry_s=600,
        description="x",
    )


def says(value, status=200):
    return lambda do: (status, value)


def changed(**change):
    return lambda do: (200, do()[1] | change)


def lost(do):
    """The mint does what it is asked for, and the answer is lost."""
    do()
    return AWAY


async def pay(wallet, invoice, max_fee_msat=10_000, **options):
    return await wallet.pay(invoice.bolt11, max_fee_msat=max_fee_msat, **options)


# Its invoices


@pytest.mark.parametrize(
    ("amount_msat", "expiry_s", "field"),
    [
        (0, 60, "amount_msat"),
        (-1_000, 60, "amount_msat"),
        (1_001, 60, "amount_msat"),
        (10**11 + 1_000, 60, "amount_msat"),
        (1_000, 0, "expiry_s"),
        (1_000, invoices.MAX_EXPIRY_S + 1, "expiry_s"),
    ],
)
async def test_an_invoice_out_of_range_is_not_asked_for(opened, amount_msat, expiry_s, field):
    service, wallet = await opened()
    with pytest.raises(BadInput) as refused:
        await wallet.invoice(amount_msat, description="x", expiry_s=expiry_s)
    assert refused.value.field == field and service.asked == []


async def test_a_mint_that_makes_an_invoice_of_another_amount_is_a_lost_link(opened):
    service, wallet = await opened()
    await wallet.info()
    service.instead[mint_service.MINT_QUOTE] = lambda do: (200, do()[1] | {"request": bill(22_000).bolt11})
    with pytest.raises(LinkLost, match="22000 msat for 21000 msat"):
        await wallet.invoice(21_000, description="x", expiry_s=60)
    assert wallet.purse.open_invoices() == []


async def test_an_invoice_that_nobody_paid_fails_long_after_it_expired_and_no_sooner(opened):
    service, wallet = await opened()
    states = []
    for age_s in (0, 700, 600 + 3_600 + 60):
        service.age_s = age_s
        made = await wallet.invoice(5_000, description="x", expiry_s=600)
        states.append((await wallet.lookup(made.payment_hash, "in")).state)
    assert states == ["open", "open", "failed"]


async def test_an_invoice_whose_payment_is_on_its_way_stays_open(opened):
    service, wallet = await opened()
    made = await wallet.invoice(5_000, description="x", expiry_s=600)
    service.instead[mint_service.MINT_STATE] = changed(state="PENDING")
    assert (await wallet.lookup(made.payment_hash, "in")).state == "open"
    service.pay(wallet.purse.invoice(made.payment_hash).quote)
    assert (await wallet.lookup(made.payment_hash, "in")).state == "settled" and wallet.purse.balance_sat == 5


async def test_a_mint_that_gives_no_ecash_for_a_paid_invoice_is_asked_again_for_the_same(opened):
    service, wallet = await opened()
    made = await wallet.invoice(5_000, description="x", expiry_s=600)
    service.pay(wallet.purse.invoice(made.payment_hash).quote)
    service.instead[mint_service.MINT] = says({"code": 20003, "detail": "minting is off"}, 400)
    with pytest.raises(LinkLost, match="does not give the ecash of a paid invoice"):
        await wallet.balance_msat()
    (asked,) = wallet.purse.operations("mint")
    assert wallet.purse.invoice(made.payment_hash).state == "open"
    assert await wallet.balance_msat() == 5_000
    assert {one.secret for one in wallet.purse.free()} == {one.secret for one in asked.outputs}


async def test_ecash_that_the_mint_gave_to_another_fails_the_invoice(opened):
    service, wallet = await opened()
    made = await wallet.invoice(5_000, description="x", expiry_s=600)
    service.quotes[wallet.purse.invoice(made.payment_hash).quote]["state"] = "ISSUED"
    assert await wallet.balance_msat() == 0
    assert (await wallet.lookup(made.payment_hash, "in")).state == "failed" and not wallet.purse.operations("mint")


async def test_ecash_that_another_process_has_fetched_meanwhile_counts_once(opened):
    service, wallet = await opened()
    made = await wallet.invoice(5_000, description="x", expiry_s=600)
    service.pay(wallet.purse.invoice(made.payment_hash).quote)

    async def late(do):
        answer = do()
        assert await opened.again().balance_msat() == 5_000
        return answer

    service.instead[mint_service.MINT] = late
    assert await wallet.balance_msat() == 5_000
    assert service.asked.count(mint_service.MINT) == 2
    assert [one.amount_sat for one in wallet.purse.settled_after(0)] == [5]


# Before a payment begins


async def test_an_invoice_that_has_expired_fails_and_the_mint_is_not_asked(opened):
    service, wallet = await opened(100)
    asked = len(service.asked)
    failed = await pay(wallet, bill(age_s=700))
    assert (failed.state, failed.reason) == ("failed", "the invoice has expired")
    assert len(service.asked) == asked and await wallet.balance_msat() == 100_000


@pytest.mark.parametrize("state", ["PAID", "PENDING"])
async def test_an_invoice_that_another_of_the_mints_users_pays_fails(opened, state):
    service, wallet = await opened(100)
    service.instead[mint_service.MELT_QUOTE] = changed(state=state)
    failed = await pay(wallet, bill())
    assert (failed.state, failed.reason) == ("failed", "the mint has it as paid by another")
    assert wallet.purse.balance_sat == 100


async def test_an_invoice_that_the_mint_refuses_fails_in_its_words(opened):
    service, wallet = await opened(100)
    service.instead[mint_service.MELT_QUOTE] = says({"code": 20006, "detail": "no route"}, 400)
    failed = await pay(wallet, bill())
    assert (failed.state, failed.reason) == ("failed", "the mint refuses: no route")


@pytest.mark.parametrize(("amount_msat", "asked_sat"), [(21_000, 20), (21_000, 22), (20_500, 20), (20_500, 22)])
async def test_a_mint_that_asks_another_amount_than_the_invoices_gets_nothing(opened, amount_msat, asked_sat):
    service, wallet = await opened(100)
    service.instead[mint_service.MELT_QUOTE] = changed(amount=asked_sat)
    invoice = bill(amount_msat)
    with pytest.raises(LinkLost, match=f"asks {asked_sat} sat for an invoice of {amount_msat} msat"):
        await pay(wallet, invoice)
    with pytest.raises(NotFound):
        wallet.purse.payment(invoice.payment_hash)
    assert (await pay(wallet, invoice)).state == "settled" and wallet.purse.balance_sat == 79  # a part is a whole one


async def test_a_payment_that_another_process_begins_meanwhile_is_left_to_it(opened):
    service, wallet = await opened(64)
    invoice = bill(64_000)

    def late(do):
        there = SentPayment(invoice.payment_hash, "its quote", 64_000, "failed", 0, None, 9, "its reason")
        assert opened.again().purse.add_payment(there)
        return do()

    service.instead[mint_service.MELT_QUOTE] = late
    assert (await pay(wallet, invoice)).reason == "its reason"
    assert mint_service.MELT not in service.asked and wallet.purse.balance_sat == 64


async def test_a_purse_that_cannot_also_pay_the_fee_of_a_swap_fails_the_payment(opened):
    service, wallet = await opened(32, fee_ppk=1_000)
    failed = await pay(wallet, bill(30_000))
    assert failed.state == "failed" and "32 sat are there" in failed.reason and "are needed" in failed.reason
    assert mint_service.SWAP not in service.asked and await wallet.balance_msat() == 32_000


# While the mint pays


def late_answer(service, call):
    """The mint answers that call once `free` is set, and does nothing before; `reached` when it is asked."""
    reached, free = asyncio.Event(), asyncio.Event()

    async def late(do):
        reached.set()
        await free.wait()
        return do()

    service.instead[call] = late
    return reached, free


async def test_a_payer_who_waits_no_longer_is_told_how_far_it_is(opened):
    service, wallet = await opened(100)
    invoice = bill()
    _, quotes = late_answer(service, mint_service.MELT_QUOTE)
    reached, melts = late_answer(service, mint_service.MELT)
    with pytest.raises(TimedOut, match="has not made a quote"):
        await pay(wallet, invoice, timeout_s=0.01)
    quotes.set()
    asking = asyncio.create_task(pay(wallet, invoice))
    await reached.wait()
    assert (await pay(wallet, invoice, timeout_s=0.01)).state == "pending"
    assert (await wallet.lookup(invoice.payment_hash, "out")).state == "pending"
    melts.set()
    assert (await asking).state == "settled"
    assert service.asked.count(mint_service.MELT) == 1 and await wallet.balance_msat() == 79_000


async def test_a_wallet_that_closes_while_it_pays_leaves_the_payment_to_the_next_process(opened):
    service, wallet = await opened(100)
    invoice = bill()
    reached, free = late_answer(service, mint_service.MELT)
    asking = asyncio.create_task(pay(wallet, invoice))
    await reached.wait()
    await wallet.close()
    with pytest.raises(asyncio.CancelledError):
        await asking
    free.set()
    again = opened.again()
    ended = await again.lookup(invoice.payment_hash, "out")
    assert ended.state in ("settled", "failed")
    assert await again.balance_msat() == (79_000 if ended.state == "settled" else 100_000)


async def test_a_payment_that_the_mint_has_on_its_way_is_pending_and_not_taken_back(opened):
    service, wallet = await opened(100)
    invoice = bill()
    service.instead[mint_service.MELT] = lambda do: (200, do()[1] | {"state": "PENDING"})
    assert (await pay(wallet, invoice)).state == "pending"
    service.instead[mint_service.MELT_STATE] = changed(state="PENDING")
    assert (await wallet.lookup(invoice.payment_hash, "out")).state == "pending"
    assert mint_service.STATES not in service.asked
    service.quotes[wallet.purse.payment(invoice.payment_hash).quote]["state"] = "PAID"
    assert (await wallet.lookup(invoice.payment_hash, "out")).state == "settled"


async def test_a_payment_whose_inputs_the_mint_holds_is_pending_whatever_its_quote_says(opened):
    service, wallet = await opened(21)
    invoice = bill()
    service.pending = {one.y for one in wallet.purse.free()}
    service.instead[mint_service.MELT] = says(*reversed(AWAY))
    assert (await pay(wallet, invoice)).state == "pending"
    service.pending = set()
    assert (await wallet.lookup(invoice.payment_hash, "out")).state == "failed"
    assert await wallet.balance_msat() == 21_000


@pytest.mark.parametrize("ends_as", ["PENDING", "PAID"])
async def test_a_request_that_comes_through_while_the_money_is_taken_back_is_a_payment(opened, ends_as):
    service, wallet = await opened(21)
    invoice = bill()

    def late(do):
        ys = {one.y for operation in wallet.purse.operations("melt") for one in operation.inputs}
        (service.pending if ends_as == "PENDING" else service.spent).update(ys)
        service.quotes[quote_of(wallet, invoice)]["state"] = ends_as
        return do()

    def unspent(do):
        service.instead[mint_service.STATES] = late
        return do()

    service.instead |= {mint_service.MELT: says(*reversed(AWAY)), mint_service.STATES: unspent}
    assert (await pay(wallet, invoice)).state == "pending"
    assert mint_service.STATES not in service.instead
    service.quotes[quote_of(wallet, invoice)]["state"] = "PAID"
    assert (await wallet.lookup(invoice.payment_hash, "out")).state == "settled"


async def test_a_swap_whose_inputs_are_in_a_request_under_way_is_kept_until_its_end(opened):
    service, wallet = await opened(100)
    service.instead[mint_service.SWAP] = says(*reversed(AWAY))
    with pytest.raises(LinkLost):
        await pay(wallet, bill())
    service.instead[mint_service.SWAP] = says({"code": 11002, "detail": "proofs are pending"}, 400)
    with pytest.raises(LinkLost, match="under way"):
        await wallet.balance_msat()
    assert len(wallet.purse.operations("swap")) == 1
    service.instead.clear()
    assert await wallet.balance_msat() == 100_000


async def test_a_mint_that_says_unpaid_of_what_it_was_to_pay_gives_the_money_back(opened):
    service, wallet = await opened(100)
    invoice = bill()
    service.instead[mint_service.MELT] = lambda do: (200, service.quotes[quote_of(wallet, invoice)])
    failed = await pay(wallet, invoice)
    assert (failed.state, failed.fee_msat, failed.reason) == ("failed", 0, "the mint could not pay it")
    assert await wallet.balance_msat() == 100_000 and wallet.purse.operations("melt") == []


async def test_money_that_is_spent_for_nothing_that_the_mint_tells_leaves_the_payment_pending(opened):
    service, wallet = await opened(100)
    invoice = bill()

    def stolen(do):
        do()
        service.quotes[quote_of(wallet, invoice)]["state"] = "UNPAID"
        return AWAY

    service.instead[mint_service.MELT] = stolen
    assert (await pay(wallet, invoice)).state == "pending"
    assert (await wallet.lookup(invoice.payment_hash, "out")).state == "pending"
    assert len(wallet.purse.operations("melt")) == 1 and await wallet.balance_msat() == 79_000


def quote_of(wallet, invoice):
    return wallet.purse.payment(invoice.payment_hash).quote


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_payment_that_another_process_writes_down_first_is_as_that_one_wrote_it(opened, is_lost):
    service, wallet = await opened(100, fee_sat=3)
    invoice = bill()

    async def late(do):
        answer = do()
        there = await opened.again().lookup(invoice.payment_hash, "out")
        assert there.state == "settled"
        return AWAY if is_lost else answer

    service.instead[mint_service.MELT] = late
    assert (await pay(wallet, invoice)).state == "settled"
    assert await wallet.balance_msat() == 79_000 and wallet.purse.operations("melt") == []


async def test_a_payment_that_two_processes_take_back_is_taken_back_once(opened):
    service, wallet = await opened(21)
    invoice = bill()

    async def late(do):
        answer = do()
        assert (await opened.again().lookup(invoice.payment_hash, "out")).state == "failed"
        return answer

    service.instead |= {mint_service.MELT: says(*reversed(AWAY)), mint_service.SWAP: late}
    assert (await pay(wallet, invoice)).state == "failed"
    assert await wallet.balance_msat() == 21_000 and len(wallet.purse.free()) == 3


@pytest.mark.parametrize(
    ("told", "supported", "came_sat"),
    [(True, True, 3), (False, True, 3), (False, False, 0), ("many", True, 3)],
)
async def test_what_the_mint_gives_back_of_its_fee_is_told_or_restored(opened, told, supported, came_sat):
    service, wallet = await opened(64, fee_sat=3)
    invoice = bill(61_000)

    def melted(do):
        said = dict(do()[1])
        change = said["change"]
        said["change"] = change if told is True else [] if not told else change * 3
        return 200, said

    service.instead[mint_service.MELT] = melted
    if not supported:
        service.instead[mint_service.INFO] = says({"nuts": {}})
    paid = await pay(wallet, invoice)
    assert (paid.state, paid.fee_msat) == ("settled", (3 - came_sat) * 1_000)
    assert await wallet.balance_msat() == came_sat * 1_000


@pytest.mark.parametrize("shown", ["", "zz" * 32, "11" * 32, "RIGHT"])
async def test_a_preimage_counts_if_it_opens_the_invoice(opened, shown):
    service, wallet = await opened(100)
    preimage = "ab" * 32
    invoice = invoices.issue(
        b"\x07" * 32,
        network="bcrt",
        amount_msat=21_000,
        payment_hash=invoices.hash_of(preimage),
        created_at_s=int(time.time()),
        expiry_s=600,
        description="x",
    )
    told = preimage if shown == "RIGHT" else shown
    service.instead[mint_service.MELT] = lambda do: (200, do()[1] | {"payment_preimage": told})
    paid = await pay(wallet, invoice)
    assert (paid.state, paid.preimage) == ("settled", preimage if shown == "RIGHT" else None)


# Swaps


async def test_a_swap_whose_answer_is_lost_is_ended_before_the_next_payment(opened):
    service, wallet = await opened(64)
    service.instead[mint_service.SWAP] = lost
    with pytest.raises(LinkLost):
        await pay(wallet, bill())
    assert wallet.purse.held_sat == 64
    assert (await pay(wallet, bill())).state == "settled"
    assert await wallet.balance_msat() == 43_000 and wallet.purse.operations("swap") == []


async def test_a_swap_that_the_mint_refuses_sets_its_inputs_free_and_fails_the_payment(opened):
    service, wallet = await opened(64)
    service.instead[mint_service.SWAP] = says({"code": 11005, "detail": "swaps are off"}, 400)
    failed = await pay(wallet, bill())
    assert (failed.state, failed.reason) == ("failed", "refuses: swaps are off")
    assert wallet.purse.balance_sat == 64 and wallet.purse.operations("swap") == []
    assert (await pay(wallet, bill())).state == "settled"


async def test_a_swap_of_which_one_input_is_spent_was_never_made_and_gives_the_others_back(opened):
    service, wallet = await opened(12)
    service.spent = {one.y for one in wallet.purse.free() if one.amount_sat == 4}
    with pytest.raises(MintRefused):
        async with wallet.chosen(9, amount_msat=9_000, max_fee_msat=0):
            pass
    assert wallet.purse.operations("swap") == [] and [one.amount_sat for one in wallet.purse.free()] == [8]


async def test_a_swap_whose_inputs_are_spent_and_bring_nothing_stays_to_be_seen(opened):
    service, wallet = await opened(64)
    service.spent = {one.y for one in wallet.purse.free()}
    assert (await pay(wallet, bill())).state == "failed"
    for shown in (wallet, opened.again()):
        assert await shown.balance_msat() == 64_000 and shown.purse.held_sat == 64
    (asked,) = wallet.purse.operations("swap")
    with pytest.raises(MintRefused) as refused:
        await wallet._swap(asked)
    assert refused.value.is_spent


async def test_a_swap_on_disk_that_the_mint_never_made_is_made_by_the_next_process(opened):
    _, wallet = await opened(64)
    with wallet.purse.transaction():
        wallet.purse.begin("swap", wallet.purse.free(), blanks(64, opened.service.id))
    again = opened.again()
    assert await again.balance_msat() == 64_000 and again.purse.operations("swap") == []


@pytest.mark.parametrize("fee_ppk", [1, 499, 500, 1_000, 2_000, 5_000])
@pytest.mark.parametrize("amount_sat", [1, 7, 100, 255])
async def test_one_swap_makes_a_sum_exact_whatever_the_mint_takes_for_a_proof(opened, fee_ppk, amount_sat):
    service, wallet = await opened(1_023, fee_ppk=fee_ppk)
    before_sat = wallet.purse.balance_sat
    paid = await pay(wallet, bill(amount_sat * 1_000), max_fee_msat=10**6)
    assert paid.state == "settled" and wallet.purse.held_sat == 0
    assert service.asked.count(mint_service.SWAP) <= 1 and service.asked.count(mint_service.MELT) == 1
    assert before_sat - wallet.purse.balance_sat == amount_sat + paid.fee_msat // 1_000


async def test_a_mint_whose_fee_lets_no_sum_be_exact_fails_the_payment_before_anything_is_spent(opened):
    service, wallet = await opened(1_023, fee_ppk=10**6)
    failed = await pay(wallet, bill(7_000), max_fee_msat=10**9)
    assert failed.state == "failed" and mint_service.SWAP not in service.asked
    assert wallet.purse.balance_sat == 1_023


async def test_a_swap_that_another_process_takes_the_money_of_ends_the_payment(opened):
    service, wallet = await opened(64)
    other = opened.again()
    swap = wallet._swap

    async def taken(asked):
        await swap(asked)
        with other.purse.transaction():
            other.purse.begin("melt", other.purse.free(), [], "another's quote")

    wallet._swap = taken
    with pytest.raises(PaymentFailed, match="another payment takes this money"):
        await wallet._exactly(21, 10**6, 21_000)
    assert mint_service.MELT not in service.asked
