"""A treasury's own rules, step by step, on both kinds of tables: the simulated network's, and a registrar's in SQL."""

from __future__ import annotations

import sqlite3
from dataclasses import fields

import pytest

import tests.pay.bond_market as bm
from nodewire.core.persistent_map import PersistentMap
from nodewire.errors import BadInput, NotAllowed, PaymentFailed
from nodewire.pay.bond.quorum.treasury import PricedCase
from nodewire.pay.bond.treasury import tables
from nodewire.pay.bond.treasury.book import InvoicePayout, Share, TreasuryBook
from tests.pay.bond_market import CUSTOMER, REQUEST

VERIFIER, OTHER, FEE_PPM = "verifier", "other", 100_000
PRICE_MSAT, DRAWN_MS, JOB = 1_000, 50_000, REQUEST.id


@pytest.fixture(params=["persistent", "sql"])
def empty(request):
    if request.param == "persistent":
        return TreasuryBook(*(PersistentMap() for _ in fields(TreasuryBook)))
    db = sqlite3.connect(":memory:", isolation_level=None)
    for statement in tables.SCHEMA.split(";"):
        db.execute(statement)
    return tables.open_book(db)


def stated(book, chunk, *shares, at_s=10, paid_msat=10**6):
    return book.with_statement(bm.statement(chunk, *shares), paid_msat, FEE_PPM, at_s)


def case(name="case", **changes):
    """A pass by VERIFIER and OTHER on the only task of a job, of which one chunk in two is drawn."""
    facts = {
        "request": JOB,
        "customer": CUSTOMER.public,
        "task": "stage",
        "chunk": 0,
        "price_msat": PRICE_MSAT,
        "chunk_msat": PRICE_MSAT,
        "rate_ppm": 500_000,
        "drawn_at_ms": DRAWN_MS,
        "agreed": (VERIFIER, OTHER),
        "payouts": {},
        "computed_units": 1,
    }
    return PricedCase(case=name, **{**facts, **changes})


def test_a_share_counts_from_the_end_of_the_second_in_which_it_came():
    share = Share(300, ((9, 100, 10), (10, 200, 20)))
    assert [share.before_ms(at_ms) for at_ms in (9_999, 10_000, 10_999, 11_000)] == [0, 100, 100, 300]
    assert share.before_ms(11_000, less_fees=True) == 270


def test_a_statement_is_booked_once_and_whole_or_not_at_all(empty):
    with pytest.raises(PaymentFailed, match="999 msat are paid ahead, and 1000 msat"):
        stated(empty, 0, 400, 600, paid_msat=999)
    assert empty.share_msat(JOB, CUSTOMER.public, 0) == 0
    book = stated(empty, 0, 400, 600, paid_msat=1_000)
    assert (book.pots[JOB].left_msat, book.fees_msat, book.stated_msat(CUSTOMER.public)) == (900, 100, 1_000)
    assert stated(book, 0, 400, 600, paid_msat=1_000) is book
    for shares in ((399, 600), (400, 601), (1, 1)):
        with pytest.raises(NotAllowed, match="was stated with"):
            stated(book, 0, *shares)
    more = stated(book, 1, 600, 7, paid_msat=1_007)  # overlaps what is known
    assert more.stated_msat(CUSTOMER.public) == 1_007


def test_the_committees_part_is_of_all_shares_of_a_request_together(empty):
    book = empty
    for chunk in range(20):
        book = stated(book, chunk, 3)
    assert (book.pots[JOB].received_msat, book.fees_msat) == (54, 6)


def test_units_that_were_computed_are_those_funded_before_the_draw(empty):
    book = stated(stated(empty, 0, 1_000), 1, 1_000, at_s=60)
    units = [book.computed_units(JOB, CUSTOMER.public, 1, 1_000, at_ms) for at_ms in (DRAWN_MS, 61_000)]
    assert units == [1, 2]


def test_chunks_that_follow_are_those_with_the_whole_share_before_the_draw(empty):
    book = stated(empty, 1, 1_000, 1_000, 999)
    assert book.following(JOB, CUSTOMER.public, 0, 1_000, DRAWN_MS) == 2
    late = stated(book, 4, 1_000, at_s=60)
    assert late.following(JOB, CUSTOMER.public, 3, 1_000, DRAWN_MS) == 0


def test_what_a_share_covers_is_less_its_fee_and_what_was_drawn(empty):
    book = stated(empty, 0, 1_000)
    assert book.covered_msat(case()) == 1_800  # 900 by a rate of a half
    book = book.with_pool(100).with_verifiers_pay(case(), VERIFIER, PRICE_MSAT)
    assert (book.pots[JOB].left_msat, book.pool_msat, book.covered_msat(case())) == (0, 0, 800)


def test_the_treasury_gives_a_verifier_what_is_due_once_and_no_more_than_it_holds(empty):
    book = stated(empty, 0, 1_000).with_pool(150)
    with pytest.raises(NotAllowed, match="are due"):
        book.with_verifiers_pay(case(), VERIFIER, PRICE_MSAT + 1)
    for payee, one in (("stranger", case()), (VERIFIER, case(payouts={VERIFIER: 1}))):
        with pytest.raises(NotAllowed, match="nothing"):
            book.verifier_due_msat(one, payee)
    book = book.with_verifiers_pay(case(), VERIFIER, PRICE_MSAT)
    assert book.verifier_due_msat(case(), VERIFIER) == 0
    with pytest.raises(NotAllowed):
        book.with_verifiers_pay(case(), VERIFIER, 1)
    with pytest.raises(PaymentFailed, match="50 msat are there"):
        book.with_verifiers_pay(case(), OTHER, book.verifier_due_msat(case(), OTHER))


def test_a_payout_takes_its_route_out_of_what_is_due_and_gives_back_what_is_left_of_it(empty):
    book = empty.with_credit("case", VERIFIER, 5_000)
    for payout in (InvoicePayout("a", VERIFIER, "", 4_000, 1_001), InvoicePayout("a", OTHER, "", 1)):
        with pytest.raises(PaymentFailed, match="are due"):
            book.with_payout(payout)
    with pytest.raises(BadInput):
        book.with_payout(InvoicePayout("a", VERIFIER, "", 0))
    payout = InvoicePayout("a", VERIFIER, "", 3_000, 2_000)
    book = book.with_payout(payout)
    assert book.with_payout(payout) is book
    assert (book.due_msat(VERIFIER), book.owed_msat()) == (0, 5_000)
    with pytest.raises(NotAllowed, match="another payout"):
        book.with_payout(InvoicePayout("a", OTHER, "", 3_000))
    book = book.with_payment("a", 500)
    assert (book.due_msat(VERIFIER), book.owed_msat(), book.bound[VERIFIER]) == (1_500, 1_500, 0)
    assert book.with_payment("a", 500) is book and book.with_failure("a") is book


def test_a_payout_that_failed_gives_all_back_and_its_invoice_serves_no_more(empty):
    payout = InvoicePayout("a", VERIFIER, "", 3_000, 2_000)
    book = empty.with_credit("case", VERIFIER, 5_000).with_payout(payout).with_failure("a")
    assert (book.due_msat(VERIFIER), book.payouts["a"].state) == (5_000, "failed")
    assert book.with_failure("a") is book and book.with_payment("a") is book
    with pytest.raises(NotAllowed, match="failed before"):
        book.with_payout(payout)


def test_fees_are_given_up_to_what_came(empty):
    book = stated(empty, 0, 1_000)
    with pytest.raises(PaymentFailed):
        book.with_fee("oracle", 101)
    assert book.fee_msat("oracle", 4) == 25
    taken = book.with_fee("oracle", 60)
    assert (taken.due_msat("oracle"), taken.owed_msat()) == (60, 1_000)
    with pytest.raises(PaymentFailed):
        taken.with_fee("other oracle", 41)


def test_a_pot_closes_once_and_opens_with_the_next_share(empty):
    book = stated(empty, 0, 1_000).with_closed_pot(JOB)
    assert (book.pots[JOB].left_msat, book.pool_msat) == (0, 900)
    assert book.with_closed_pot(JOB) is book
    again = stated(book, 1, 1_000)
    assert (again.pots[JOB].left_msat, again.pots[JOB].is_closed, again.pool_msat) == (900, False, 900)


def test_a_case_of_a_job_without_a_rate_or_a_price_is_covered_by_nothing(empty):
    book = stated(empty, 0)
    assert book.covered_msat(case()) > 0
    for change in ({"rate_ppm": 0}, {"chunk_msat": 0}):
        assert book.covered_msat(case(**change)) == 0
        assert book.verifier_due_msat(case(**change), VERIFIER) == 0


def test_of_a_job_that_asks_no_share_one_unit_was_computed(empty):
    book = stated(empty, 0)
    assert book.computed_units(JOB, CUSTOMER.public, 5, 0, 10**9) == 1
    assert book.computed_units(JOB, CUSTOMER.public, 5, bm.SHARE_MSAT // 4, 10**9) == 4
