"""What every wallet must do, run against every implementation that is here.

An account is the test's own or was used before: amounts are told by what they were a moment ago. A wallet that lacks an
ability says so in `info`; the suite then shows that it refuses what it lacks (`lacking`), and tells which case was not
run for what ability. No case is skipped where the ability is claimed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time

import pytest

from nodewire.errors import BadInput, NodewireError, NotAllowed, NotFound
from nodewire.pay.lightning import invoices
from nodewire.pay.lightning.wallet import ABILITIES
from simnet.wallet import SimWallet
from tests.pay.wallets.services import electrum_network

TEXT = '{"kind":9734,"content":"a zap"}'
RICH_MSAT = 1_000_000
MOST_FEE_MSAT = 10_000


class Pair:
    """Two wallets of one kind on one network, and their balances before the test. The payer has RICH_MSAT or more."""

    def __init__(self, payee, payer, info):
        self.payee, self.payer, self.info = payee, payer, info
        self.before = {}

    @property
    def unit(self):
        return self.info.unit_msat

    def amount(self, units=21):
        """So many units: more than the least that the wallet takes."""
        return max(self.info.least_msat, units * self.unit)

    async def mark(self):
        self.before = {one: await one.balance_msat() for one in (self.payee, self.payer)}

    async def moved(self, wallet):
        """What came to the balance, less what went, since the mark."""
        return await wallet.balance_msat() - self.before[wallet]

    async def invoice(self, amount_msat=None, expiry_s=600, text=TEXT):
        return await self.payee.invoice(amount_msat or self.amount(), description=text, expiry_s=expiry_s)

    async def pay(self, invoice, max_fee_msat=MOST_FEE_MSAT, **options):
        """What the payer says. What it has paid stands in the payee's record, a moment later where others forward."""
        paid = await self.payer.pay(invoice.bolt11, max_fee_msat=max_fee_msat, **options)
        if paid.state == "settled":
            async with asyncio.timeout(30):
                while (await self.payee.lookup(invoice.payment_hash, "in")).state != "settled":
                    await asyncio.sleep(0.05)
        return paid

    async def hold(self, amount_msat=None):
        preimage, payment_hash = new_preimage()
        invoice = await self.payee.hold_invoice(
            amount_msat or self.amount(), payment_hash=payment_hash, description=TEXT, expiry_s=600
        )
        return preimage, invoice

    @contextlib.asynccontextmanager
    async def held(self, invoice):
        """A payment of a hold invoice that the payee's wallet holds."""
        task = asyncio.create_task(self.pay(invoice))
        while (await self.payee.lookup(invoice.payment_hash, "in")).state != "pending":
            assert not task.done(), task.result()
        yield task
        await task


LACKS = {
    "cashu": {"invoice", "hold"},
    "sim": set(),
    "nwc": {"fee-cap", "failures", "hold"},
    "lnbits": {"fee-cap", "failures", "hold"},
    "lnd": {"failures"},
    "cln": {"failures", "hold"},
    "phoenixd": {"fee-cap", "failures", "hold"},
    "lexe": {"invoice", "fee-cap", "lookup-in", "failures", "settled", "hold"},
}
"""By kind of wallet, the abilities that it lacks: a case that needs one of them shows that the wallet refuses it."""
REAL = {"electrum": set(), "electrum-nwc": {"invoice", "fee-cap", "failures", "hold"}}
"""The same of the kinds that run on three real nodes, where there are some."""
LACKS |= REAL if electrum_network.is_there() else {}
GIFTED = set()
"""Kinds of `REAL` whose accounts were used."""


@pytest.fixture(params=sorted(LACKS))
async def pair(request, open_kind, open_payee):
    payee, payer = await open_payee(request.param), await open_kind(request.param, RICH_MSAT)
    if request.param != "sim" and request.param not in GIFTED:  # an account that was used before
        GIFTED.update({request.param} & REAL.keys())
        for one, other, gift_msat in ((payee, payer, 100_000), (payer, payee, 40_000)):
            if "invoice" not in (await one.info()).abilities:
                continue
            gift = await one.invoice(gift_msat, description="a gift", expiry_s=60)
            assert (await other.pay(gift.bolt11, max_fee_msat=MOST_FEE_MSAT)).state == "settled"
            await other.close()
    found = Pair(payee, payer, await payer.info())
    needs = [mark.args[0] for mark in request.node.iter_markers("needs")]
    for ability in needs:
        if ability not in found.info.abilities:
            await lacking(found, ability)
            pytest.xfail(f"the wallet says that it lacks {ability}, and refuses it")
    await found.mark()
    return found


async def lacking(pair, ability):
    """What a wallet does that says that it lacks an ability: it refuses with a typed error, and moves nothing."""
    if ability == "invoice":
        make = getattr(pair.payer, "own_invoice", pair.payer.invoice)
        with contextlib.suppress(NotAllowed, NotFound):  # or it makes one that does not pretend
            assert (await make(pair.amount(), description=TEXT, expiry_s=60)).description_hash is None
    tries = {
        "balance": lambda: pair.payer.balance_msat(),
        "pay": lambda: pair.payer.pay("lnbcrt1", max_fee_msat=0),
        "lookup-in": lambda: pair.payer.lookup("00" * 32, "in"),
        "lookup-out": lambda: pair.payer.lookup("00" * 32, "out"),
        "settled": lambda: anext(pair.payer.settled()),
    }
    if ability in tries:
        with pytest.raises((NotAllowed, NotFound)):
            await tries[ability]()


def new_preimage():
    preimage = os.urandom(32).hex()
    return preimage, invoices.hash_of(preimage)


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


async def first(stream, count):
    found = []
    async with asyncio.timeout(30):
        async for receipt in stream:
            found.append(receipt)
            if len(found) == count:
                break
    await stream.aclose()
    return found


async def came(pair, wanted, after=""):
    """The receipts of these payment hashes, in the order in which the wallet tells of them."""
    found, missing = [], set(wanted)
    stream = pair.payee.settled(after=after)
    async with asyncio.timeout(30):
        while missing:
            receipt = await anext(stream)
            if receipt.payment_hash in wanted:
                found.append(receipt)
                missing.discard(receipt.payment_hash)
    await stream.aclose()
    return found


# Who it is


async def test_info_names_the_wallet_its_network_and_what_it_takes(pair):
    info = pair.info
    assert info.id and len(info.id) <= 256 and info.network in invoices.NETWORKS
    assert 1 <= info.unit_msat <= info.least_msat <= info.most_msat <= invoices.MAX_MSAT
    assert info.abilities <= ABILITIES


async def test_the_abilities_that_a_wallet_lacks_are_those_that_this_suite_tells_of(pair, request):
    assert ABILITIES - pair.info.abilities == LACKS[request.node.callspec.params["pair"]]


async def test_the_id_stays_and_another_wallets_is_another(pair):
    assert (await pair.payer.info()).id == pair.info.id
    assert (await pair.payee.info()).id != pair.info.id


async def test_an_id_shows_no_secret(pair):
    token = getattr(pair.payer, "_token", "")
    assert not token or token not in pair.info.id


@pytest.mark.needs("balance")
async def test_a_balance_is_whole_msat_and_not_negative(pair):
    for wallet in (pair.payee, pair.payer):
        held = await wallet.balance_msat()
        assert type(held) is int and held >= 0


# Invoices


@pytest.mark.needs("invoice")
@pytest.mark.parametrize("units", [1, 21, 1_001])
async def test_an_invoice_says_what_was_asked_for(pair, units):
    invoice = await pair.invoice(pair.amount(units))
    assert (invoice.amount_msat, invoice.network) == (pair.amount(units), pair.info.network)
    assert invoice.expires_at_s - invoice.created_at_s == 600
    assert abs(invoice.created_at_s - time.time()) < 60


@pytest.mark.needs("invoice")
@pytest.mark.parametrize("text", [TEXT, "", "x" * 8_000, '{"content":"⚡ ü"}'])
async def test_an_invoice_commits_to_the_hash_of_its_description(pair, text):
    invoice = await pair.invoice(text=text)
    assert (invoice.description_hash, invoice.description) == (sha256(text), None)


@pytest.mark.needs("invoice")
async def test_an_invoice_asks_for_no_long_lock_at_its_end(pair):
    assert 0 < (await pair.invoice()).min_final_cltv_expiry <= invoices.MAX_FINAL_CLTV


@pytest.mark.needs("invoice")
async def test_invoices_of_one_wallet_come_from_one_node_and_differ_in_hash(pair):
    made = [await pair.invoice() for _ in range(3)]
    assert len({one.payee for one in made}) == 1 and len({one.payment_hash for one in made}) == 3


@pytest.mark.needs("invoice")
async def test_invoices_that_are_asked_for_at_once_are_different(pair):
    made = await asyncio.gather(*(pair.invoice() for _ in range(8)))
    assert len({one.payment_hash for one in made}) == 8


@pytest.mark.needs("lookup-in")
async def test_an_invoice_that_nobody_has_paid_is_open(pair):
    invoice = await pair.invoice()
    found = await pair.payee.lookup(invoice.payment_hash, "in")
    assert (found.direction, found.state, found.preimage, found.amount_msat) == (
        "in",
        "open",
        None,
        invoice.amount_msat,
    )


@pytest.mark.needs("invoice")
@pytest.mark.parametrize(("amount_msat", "expiry_s"), [(0, 600), (-1, 600), (1_000, 0), (10**15, 600), (1_000, 10**9)])
async def test_an_impossible_invoice_is_not_made(pair, amount_msat, expiry_s):
    with pytest.raises(BadInput):
        await pair.payee.invoice(amount_msat, description=TEXT, expiry_s=expiry_s)


@pytest.mark.needs("invoice")
async def test_an_amount_is_never_rounded(pair):
    """A wallet of whole satoshis refuses millisatoshis; it does not cut them off."""
    asked_msat = pair.amount(21) + 1
    if pair.unit == 1:
        assert (await pair.invoice(asked_msat)).amount_msat == asked_msat
    else:
        with pytest.raises(BadInput):
            await pair.invoice(asked_msat)


# Payments


@pytest.mark.needs("pay")
async def test_paying_moves_the_amount_and_proves_it(pair):
    invoice = await pair.invoice()
    paid = await pair.pay(invoice)
    assert (paid.direction, paid.state, paid.payment_hash) == ("out", "settled", invoice.payment_hash)
    assert paid.preimage is None or invoices.hash_of(paid.preimage) == invoice.payment_hash
    assert paid.preimage or not pair.info.has_preimages
    assert paid.amount_msat == invoice.amount_msat and 0 <= paid.fee_msat <= MOST_FEE_MSAT
    assert await pair.moved(pair.payee) == invoice.amount_msat
    assert await pair.moved(pair.payer) == -invoice.amount_msat - paid.fee_msat


@pytest.mark.needs("pay")
async def test_a_payment_tells_when_it_settled(pair):
    assert abs((await pair.pay(await pair.invoice())).at_s - time.time()) < 120


@pytest.mark.needs("lookup-out")
async def test_the_payer_looks_up_what_it_paid(pair):
    paid = await pair.pay(await pair.invoice())
    found = await pair.payer.lookup(paid.payment_hash, "out")
    assert (found.direction, found.state, found.preimage) == ("out", "settled", paid.preimage)
    assert (found.amount_msat, found.fee_msat) == (paid.amount_msat, paid.fee_msat)


@pytest.mark.needs("lookup-in")
async def test_the_payee_looks_up_what_came(pair):
    paid = await pair.pay(await pair.invoice())
    found = await pair.payee.lookup(paid.payment_hash, "in")
    assert (found.direction, found.state, found.preimage) == ("in", "settled", paid.preimage)
    assert (found.amount_msat, found.fee_msat) == (paid.amount_msat, 0)


@pytest.mark.needs("lookup-out")
@pytest.mark.needs("lookup-in")
async def test_what_came_did_not_go_and_what_went_did_not_come(pair):
    paid = await pair.pay(await pair.invoice())
    with pytest.raises(NotFound):
        await pair.payee.lookup(paid.payment_hash, "out")
    with pytest.raises(NotFound):
        await pair.payer.lookup(paid.payment_hash, "in")


@pytest.mark.needs("pay")
async def test_paying_again_returns_the_first_payment_and_moves_nothing(pair):
    invoice = await pair.invoice()
    paid = await pair.pay(invoice)
    await pair.mark()
    again = await pair.pay(invoice)
    assert (again.state, again.preimage, again.fee_msat) == ("settled", paid.preimage, paid.fee_msat)
    assert (await pair.moved(pair.payer), await pair.moved(pair.payee)) == (0, 0)


@pytest.mark.needs("pay")
async def test_paying_again_by_another_object_of_the_same_wallet_moves_nothing(pair, reopen):
    """Another process of the same role, or the same one after a restart."""
    invoice = await pair.invoice()
    paid = await pair.pay(invoice)
    await pair.mark()
    again = await (await reopen(pair.payer)).pay(invoice.bolt11, max_fee_msat=MOST_FEE_MSAT)
    assert (again.state, again.preimage) == ("settled", paid.preimage)
    assert (await pair.moved(pair.payer), await pair.moved(pair.payee)) == (0, 0)


@pytest.mark.needs("pay")
async def test_twenty_payments_of_one_invoice_at_once_are_one_movement(pair):
    invoice = await pair.invoice()
    ended = await asyncio.gather(*(pair.pay(invoice) for _ in range(20)))
    assert {(one.state, one.preimage) for one in ended} == {("settled", ended[0].preimage)}
    assert await pair.moved(pair.payee) == invoice.amount_msat
    assert await pair.moved(pair.payer) == -invoice.amount_msat - ended[0].fee_msat


@pytest.mark.needs("pay")
async def test_payments_of_different_invoices_at_once_all_arrive(pair):
    made = [await pair.invoice(pair.amount(10 + n)) for n in range(5)]
    ended = await asyncio.gather(*(pair.pay(one) for one in made))
    assert [one.state for one in ended] == ["settled"] * 5
    assert await pair.moved(pair.payee) == sum(one.amount_msat for one in made)


@pytest.mark.needs("pay")
async def test_a_payer_that_gives_up_waiting_has_paid_or_can_look_it_up(pair):
    invoice = await pair.invoice()
    waiting = asyncio.create_task(pair.pay(invoice))
    await asyncio.sleep(0)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    paid = await pair.pay(invoice)
    assert paid.state == "settled"
    assert await pair.moved(pair.payer) == -invoice.amount_msat - paid.fee_msat


# Payments that fail


async def fails(pair, invoice, **options):
    """The payment moves nothing. By the record it failed, with a reason; a wallet without "failures" may have none.

    Such a one may also tell of it as pending, until its invoice has expired.
    """
    knows = "failures" in pair.info.abilities
    try:
        paid = await pair.pay(invoice, **({} if knows else {"timeout_s": 5.0}), **options)
    except NodewireError:
        assert not knows
        with contextlib.suppress(NotFound):
            assert (await pair.payer.lookup(invoice.payment_hash, "out")).state in ("failed", "pending")
    else:
        if not knows and paid.state == "pending":
            assert await pair.moved(pair.payer) == 0
            return
        assert (paid.direction, paid.state, paid.preimage) == ("out", "failed", None) and paid.reason
        if "lookup-out" in pair.info.abilities:
            with contextlib.suppress(*(() if knows else (NotFound,))):
                assert (await pair.payer.lookup(paid.payment_hash, "out")).state == "failed"
    assert await pair.moved(pair.payer) == 0


@pytest.mark.needs("pay")
async def test_what_the_balance_does_not_cover_is_not_paid(pair):
    invoice = await pair.invoice((pair.before[pair.payer] // pair.unit + 1) * pair.unit)
    await fails(pair, invoice)


@pytest.mark.needs("pay")
@pytest.mark.needs("fee-cap")
async def test_a_fee_above_the_cap_is_refused_before_anything_moves(pair):
    await fails(pair, await pair.invoice(pair.amount(100_000)), max_fee_msat=0)


@pytest.mark.needs("pay")
async def test_an_invoice_of_nobody_here_finds_no_route(pair):
    invoice = invoices.issue(
        b"\x07" * 32,
        network=pair.info.network,
        amount_msat=pair.amount(),
        payment_hash=os.urandom(32).hex(),
        created_at_s=int(time.time()),
        expiry_s=600,
        description_hash=sha256(TEXT),
    )
    await fails(pair, invoice)


@pytest.mark.needs("pay")
async def test_an_invoice_that_another_has_paid_cannot_be_paid(pair, open_payee, request):
    """Where others forward, none of them may be the first to pay: it would know the preimage, and take the payment."""
    third = await open_payee(request.node.callspec.params["pair"])
    await pair.pay(await pair.invoice(pair.amount(40)))
    invoice = await third.invoice(pair.amount(), description=TEXT, expiry_s=600)
    assert (await pair.payee.pay(invoice.bolt11, max_fee_msat=MOST_FEE_MSAT)).state == "settled"
    await pair.mark()
    await fails(pair, invoice)


@pytest.mark.needs("pay")
@pytest.mark.needs("invoice")
async def test_an_invoice_that_has_expired_is_not_paid(pair):
    invoice = await pair.invoice(expiry_s=3)
    while time.time() < invoice.expires_at_s + 0.1:
        await asyncio.sleep(0.1)
    await fails(pair, invoice)


@pytest.mark.needs("pay")
@pytest.mark.needs("failures")
async def test_a_failure_is_for_good_even_if_the_cause_has_passed(pair):
    """Somebody may have been told of it, and have bought another invoice."""
    invoice = await pair.invoice(pair.before[pair.payer] + pair.amount(50))
    await fails(pair, invoice)
    gift = await pair.payer.invoice(pair.amount(50) * 2, description=TEXT, expiry_s=60)
    other = await pair.payee.pay(gift.bolt11, max_fee_msat=MOST_FEE_MSAT)
    await pair.mark()
    again = await pair.pay(invoice)
    assert again.state == "failed" and await pair.moved(pair.payer) == 0, other


@pytest.mark.needs("pay")
@pytest.mark.parametrize("damage", [lambda s: s[:-1], lambda s: s[:40] + ("q" if s[40] != "q" else "p") + s[41:]])
async def test_a_damaged_invoice_is_refused(pair, damage):
    invoice = await pair.invoice()
    with pytest.raises(BadInput):
        await pair.payer.pay(damage(invoice.bolt11), max_fee_msat=MOST_FEE_MSAT)
    assert await pair.moved(pair.payer) == 0


@pytest.mark.needs("pay")
async def test_an_invoice_of_another_network_is_refused(pair):
    other = next(name for name in invoices.NETWORKS if name != pair.info.network)
    invoice = invoices.issue(
        b"\x07" * 32,
        network=other,
        amount_msat=pair.amount(),
        payment_hash=os.urandom(32).hex(),
        created_at_s=int(time.time()),
        expiry_s=600,
        description_hash=sha256(TEXT),
    )
    with pytest.raises(BadInput):
        await pair.pay(invoice)


@pytest.mark.needs("lookup-out")
async def test_a_wallet_does_not_know_a_hash_it_never_saw(pair):
    for wallet in (pair.payer, pair.payee):
        for direction in ("in", "out"):
            with pytest.raises(NotFound):
                await wallet.lookup(os.urandom(32).hex(), direction)


@pytest.mark.needs("lookup-out")
async def test_an_invoice_that_a_wallet_was_not_told_to_pay_is_none_of_its_payments(pair):
    invoice = await pair.invoice()
    with pytest.raises(NotFound):
        await pair.payer.lookup(invoice.payment_hash, "out")


@pytest.mark.parametrize("payment_hash", ["", "ab", "zz" * 32, "AB" * 32, "../balance"])
async def test_what_is_no_payment_hash_is_refused_with_a_typed_error(pair, payment_hash):
    with pytest.raises(NodewireError):
        await pair.payer.lookup(payment_hash, "out")


# What came


@pytest.mark.needs("settled")
async def test_settled_invoices_are_told_with_amount_and_preimage(pair):
    made = [await pair.invoice(pair.amount(10 + n)) for n in range(4)]
    for invoice in made:
        await pair.pay(invoice)
    told = await came(pair, [one.payment_hash for one in made])
    assert {(one.payment_hash, one.amount_msat) for one in told} == {
        (one.payment_hash, one.amount_msat) for one in made
    }
    if pair.info.has_preimages:
        assert all(invoices.hash_of(one.preimage) == one.payment_hash for one in told)
    assert all(abs(one.settled_at_s - time.time()) < 120 for one in told)


@pytest.mark.needs("settled")
@pytest.mark.parametrize("place", range(4))
async def test_the_stream_goes_on_after_a_cursor_and_misses_none(pair, place):
    made = [await pair.invoice(pair.amount(10 + n)) for n in range(5)]
    for invoice in made:
        await pair.pay(invoice)
    hashes = [one.payment_hash for one in made]
    told = await came(pair, hashes)
    after = [one.payment_hash for one in told[place + 1 :]]
    rest = await came(pair, after, after=told[place].cursor)
    assert {one.payment_hash for one in rest} == set(after)


@pytest.mark.needs("settled")
async def test_a_cursor_is_good_for_another_object_of_the_same_wallet(pair, reopen):
    made = [await pair.invoice() for _ in range(2)]
    for invoice in made:
        await pair.pay(invoice)
    told = await came(pair, [one.payment_hash for one in made])
    pair.payee = await reopen(pair.payee)
    assert (await came(pair, [made[1].payment_hash], after=told[0].cursor))[0].payment_hash == made[1].payment_hash


@pytest.mark.needs("settled")
async def test_a_cursor_of_another_wallet_is_refused_by_name(pair):
    await pair.pay(await pair.invoice())
    (told,) = await first(pair.payee.settled(), 1)
    with pytest.raises(BadInput) as refused:
        await first(pair.payer.settled(after=told.cursor), 1)
    assert refused.value.field == "cursor"


@pytest.mark.needs("settled")
@pytest.mark.parametrize("cursor", ["x", "-1", "0x10", "9" * 400, "/", "../1"])
async def test_what_is_no_cursor_is_refused(pair, cursor):
    with pytest.raises(BadInput) as refused:
        await first(pair.payee.settled(after=cursor), 1)
    assert refused.value.field == "cursor"


@pytest.mark.needs("settled")
async def test_a_listener_hears_what_settles_later_and_only_what_it_was_paid(pair):
    before = await pair.pay(await pair.invoice())
    (mark,) = await came(pair, [before.payment_hash])
    stream = pair.payee.settled(after=mark.cursor)
    heard = asyncio.create_task(anext(stream))
    back = await pair.payer.invoice(pair.amount(2), description=TEXT, expiry_s=600)
    await pair.payee.pay(back.bolt11, max_fee_msat=MOST_FEE_MSAT)
    unpaid = await pair.invoice()
    invoice = await pair.invoice()
    await pair.pay(invoice)
    async with asyncio.timeout(30):
        told = [(await heard).payment_hash]
        while told[-1] != invoice.payment_hash:
            told.append((await anext(stream)).payment_hash)
    await stream.aclose()
    assert not {back.payment_hash, unpaid.payment_hash} & set(told)


@pytest.mark.needs("settled")
async def test_two_listeners_hear_the_same(pair):
    invoice = await pair.invoice()
    paid = await pair.pay(invoice)
    told = await asyncio.gather(*(came(pair, [paid.payment_hash]) for _ in range(2)))
    facts = [[(one.payment_hash, one.amount_msat, one.preimage) for one in heard] for heard in told]
    assert facts[0] == facts[1]


# Payments on their way, and hold invoices


@pytest.mark.needs("hold")
async def test_a_held_payment_is_in_neither_balance_and_settles_with_the_preimage(pair):
    preimage, invoice = await pair.hold()
    async with pair.held(invoice) as task:
        assert await pair.moved(pair.payee) == 0
        assert await pair.moved(pair.payer) <= -invoice.amount_msat
        assert (await pair.payer.lookup(invoice.payment_hash, "out")).state == "pending"
        await pair.payee.settle_hold(preimage)
        assert (await task).preimage == preimage
    await pair.payee.settle_hold(preimage)
    assert await pair.moved(pair.payee) == invoice.amount_msat


@pytest.mark.needs("hold")
async def test_a_payer_that_waits_no_longer_is_told_that_it_is_on_its_way(pair):
    preimage, invoice = await pair.hold()
    paid = await pair.pay(invoice, timeout_s=0.0)
    assert (paid.state, paid.preimage, paid.reason) == ("pending", None, "")
    async with asyncio.timeout(30):
        while (await pair.payee.lookup(invoice.payment_hash, "in")).state != "pending":
            await asyncio.sleep(0.05)
    await pair.payee.settle_hold(preimage)
    again = await pair.pay(invoice)
    assert (again.state, again.preimage) == ("settled", preimage)
    assert await pair.moved(pair.payee) == invoice.amount_msat


@pytest.mark.needs("hold")
async def test_a_payment_on_its_way_is_not_made_twice(pair):
    preimage, invoice = await pair.hold()
    async with pair.held(invoice) as task:
        held = await pair.moved(pair.payer)
        others = [asyncio.create_task(pair.pay(invoice, timeout_s=5.0)) for _ in range(3)]
        assert await pair.moved(pair.payer) == held
        await pair.payee.settle_hold(preimage)
        assert {one.preimage for one in await asyncio.gather(task, *others)} == {preimage}
    assert await pair.moved(pair.payer) == held


@pytest.mark.needs("hold")
async def test_a_cancelled_hold_gives_everything_back_fee_included_and_failed_for_good(pair):
    preimage, invoice = await pair.hold()
    async with pair.held(invoice) as task:
        await pair.payee.cancel_hold(invoice.payment_hash)
        assert (await task).state == "failed"
        assert await pair.moved(pair.payer) == 0
    with pytest.raises(NotAllowed):
        await pair.payee.settle_hold(preimage)
    await pair.payee.cancel_hold(invoice.payment_hash)
    await fails(pair, invoice)


@pytest.mark.needs("hold")
async def test_a_hold_that_nobody_has_paid_cannot_be_settled_but_withdrawn(pair):
    preimage, invoice = await pair.hold()
    with pytest.raises(NotAllowed):
        await pair.payee.settle_hold(preimage)
    await pair.payee.cancel_hold(invoice.payment_hash)
    assert (await pair.payee.lookup(invoice.payment_hash, "in")).state == "failed"
    await fails(pair, invoice)


@pytest.mark.needs("hold")
async def test_a_settled_payment_cannot_be_cancelled(pair):
    invoice = await pair.invoice()
    await pair.pay(invoice)
    with pytest.raises(NotAllowed):
        await pair.payee.cancel_hold(invoice.payment_hash)


@pytest.mark.needs("hold")
async def test_a_payment_hash_is_used_once(pair):
    _, invoice = await pair.hold()
    with pytest.raises(NotAllowed):
        await pair.payee.hold_invoice(pair.amount(), payment_hash=invoice.payment_hash, description=TEXT, expiry_s=600)


@pytest.mark.parametrize("kind", sorted(REAL))
def test_three_real_nodes_are_there(kind):
    """Else none of the cases above ran on this kind."""
    if not electrum_network.is_there():
        pytest.skip(f"no case ran on {kind}: {electrum_network.STATE} names no network; `make lightning` has one")
    assert electrum_network.node_settings().keys() == {"a", "b", "c"}


# The simulated network's own


async def test_a_new_account_has_what_it_was_opened_with(open_wallet):
    assert await (await open_wallet(RICH_MSAT)).balance_msat() == RICH_MSAT


async def test_a_token_that_the_network_does_not_know_is_told_by_its_file(simnet_url, tmp_path):
    path = tmp_path / "wrong.token"
    path.write_text("00" * 32)
    wallet = SimWallet.from_file(simnet_url, path)
    try:
        with pytest.raises(NotAllowed, match=r"^token: http://.* does not know the token: .*wrong\.token"):
            await wallet.balance_msat()
    finally:
        await wallet.close()


async def test_an_address_of_a_network_that_is_no_url_is_told_as_such():
    with pytest.raises(BadInput, match=r"^wallet: 'simnet' is no URL such as http://"):
        await SimWallet.open_account("simnet", "test")
