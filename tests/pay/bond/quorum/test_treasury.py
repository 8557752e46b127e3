"""A registrar's treasury and a cashier whose answers are planned: payouts are settled once, pots close in time."""

from __future__ import annotations

import time

import pytest

import tests.pay.bond_market as bm
from nodewire.errors import BadInvoice, LinkLost, NotAllowed, PaymentFailed
from nodewire.pay.bond.quorum.book import Book
from nodewire.pay.bond.quorum.treasury import QuorumTreasury
from nodewire.pay.lightning import invoices
from tests.pay.bond.quorum.mint_service import new_invoice

DELAY_S, ORACLE, LUMP_MSAT = 100, bm.ORACLES[0].public, 4_000_000
POT_MSAT = LUMP_MSAT - LUMP_MSAT * bm.FEE_PPM // 1_000_000
DUE_MSAT = LUMP_MSAT * bm.FEE_PPM // 1_000_000 // 4


class PlannedCashier:
    """Of whole satoshis, each route costs one at most. `states`: what `pay` says, in order, or raises."""

    unit_msat, lnurl = 1_000, ""

    def __init__(self):
        self.states, self.asked = [], []

    def paid_msat(self, customer):
        return 2 * LUMP_MSAT

    def most_fee_msat(self, amount_msat):
        return 1_000

    def read(self, bolt11):
        return invoices.decode(bolt11)

    async def pay(self, bolt11):
        self.asked.append(bolt11)
        state = self.states.pop(0)
        if isinstance(state, Exception):
            raise state
        return state, 400


class Clock:
    now_s = 1_000.0

    def __call__(self):
        return self.now_s


class Place:
    def __init__(self, folder):
        self.book, self.cashier, self.clock = Book(folder / "book.db"), PlannedCashier(), Clock()

    def open(self):
        """Again: as the next process does."""
        return QuorumTreasury(bm.HOLDER.public, bm.COMMITTEE, self.book, self.cashier, DELAY_S, time_s=self.clock)


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path)
    yield place
    place.book.close()


@pytest.fixture
def treasury(place):
    """One in which a customer's share has brought DUE_MSAT to each oracle."""
    treasury = place.open()
    assert treasury.book_shares(bm.statement(0, LUMP_MSAT)) == LUMP_MSAT
    assert treasury.due_msat(ORACLE) == DUE_MSAT
    return treasury


async def test_an_invoice_that_is_no_multiple_of_the_wallets_unit_binds_nothing(treasury, place):
    with pytest.raises(BadInvoice, match="1500 msat is no multiple of 1000 msat") as refused:
        await treasury.payout(ORACLE, new_invoice(1_500).bolt11)
    assert (refused.value.field, treasury.due_msat(ORACLE), place.cashier.asked) == ("amount", DUE_MSAT, [])


async def test_more_than_what_is_due_with_its_route_is_paid_to_nobody(treasury, place):
    assert treasury.payable_msat(ORACLE) == DUE_MSAT - 1_000
    with pytest.raises(PaymentFailed, match=f"{DUE_MSAT} msat are due"):
        await treasury.payout(ORACLE, new_invoice(DUE_MSAT).bolt11)
    assert (treasury.payable_msat(bm.STRANGER.public), place.cashier.asked) == (0, [])


@pytest.mark.parametrize("first", ["pending", LinkLost("wallet", "silent")], ids=["pending", "silent"])
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_payout_on_its_way_stays_bound_and_is_settled_once_by_a_sweep(first, restarts, treasury, place):
    place.cashier.states = [first, "settled"]
    one = await treasury.payout(ORACLE, new_invoice(50_000).bolt11)
    assert (one.state, treasury.due_msat(ORACLE)) == ("bound", DUE_MSAT - 51_000)
    swept = place.open() if restarts else treasury
    for _ in range(2):
        await swept.sweep()
    assert swept.due_msat(ORACLE) == DUE_MSAT - 50_400  # what the route did not cost is back
    assert place.cashier.asked == [one.bolt11] * 2


async def test_a_payout_that_is_brought_again_after_it_was_paid_is_told_and_not_paid(treasury, place):
    place.cashier.states = ["settled"]
    bolt11 = new_invoice(50_000).bolt11
    paid = [await treasury.payout(ORACLE, bolt11) for _ in range(2)]
    assert [one.state for one in paid] == ["paid", "paid"]
    assert (place.cashier.asked, treasury.due_msat(ORACLE)) == ([bolt11], DUE_MSAT - 50_400)
    with pytest.raises(NotAllowed, match="another payout"):
        await treasury.payout(bm.ORACLES[1].public, bolt11)


async def test_a_payout_that_failed_gives_back_all_that_was_bound_to_it(treasury, place):
    place.cashier.states = ["pending", "failed"]
    one = await treasury.payout(ORACLE, new_invoice(50_000).bolt11)
    await treasury.sweep()
    assert treasury.due_msat(ORACLE) == DUE_MSAT
    with pytest.raises(NotAllowed, match="failed before"):
        await treasury.payout(ORACLE, one.bolt11)


async def test_a_payees_payouts_under_way_are_bounded(treasury, place):
    place.cashier.states = ["pending"] * 100
    bound = 0
    with pytest.raises(NotAllowed, match=r"of its payouts are under way"):
        while bound < 30:
            await treasury.payout(ORACLE, new_invoice(1_000).bolt11)
            bound += 1
    assert 0 < bound < 30 and treasury.due_msat(ORACLE) == DUE_MSAT - bound * 2_000


# Pots


def test_a_statement_to_another_holder_books_nothing(treasury):
    with pytest.raises(NotAllowed) as refused:
        treasury.book_shares(bm.statement(1, 1_000, holder=bm.OTHER))
    assert (refused.value.field, treasury.ahead_msat(bm.CUSTOMER.public)) == ("holder", LUMP_MSAT)


def test_a_statement_that_comes_again_is_booked_once(treasury):
    assert treasury.book_shares(bm.statement(0, LUMP_MSAT)) == LUMP_MSAT
    assert treasury.pot(bm.REQUEST.id)[0] == POT_MSAT


@pytest.mark.parametrize("restarts", [False, True])
def test_a_pot_that_was_quiet_for_the_delay_goes_to_the_pool(restarts, treasury, place):
    place.clock.now_s += DELAY_S - 1
    assert (treasury.pot(bm.REQUEST.id), treasury.pool_msat) == ((POT_MSAT, POT_MSAT), 0)
    place.clock.now_s += 1
    treasury = place.open() if restarts else treasury
    assert treasury.pot(bm.REQUEST.id) == (POT_MSAT, 0)
    assert treasury.pool_msat == POT_MSAT


def test_a_share_that_comes_before_the_delay_is_over_keeps_the_pot_open(treasury, place):
    place.clock.now_s += DELAY_S - 1
    treasury.book_shares(bm.statement(1, 1_000_000))
    place.clock.now_s += 1
    assert treasury.pot(bm.REQUEST.id)[1] > 0 and treasury.pool_msat == 0
    place.clock.now_s += DELAY_S
    assert treasury.pot(bm.REQUEST.id)[1] == 0 and treasury.pool_msat == POT_MSAT + 900_000


def test_a_job_that_nobody_paid_shares_for_has_an_empty_pot(treasury):
    assert treasury.pot("00" * 32) == (0, 0)
    assert treasury.dues_of("00" * 32) == {}
    assert treasury.share_msat(bm.REQUEST.id, bm.CUSTOMER.public, 0, int(time.time() * 1_000)) == LUMP_MSAT
