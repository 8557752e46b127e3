"""Debts and dues: nothing is paid twice, nothing owed is forgotten, and the book survives its process."""

from __future__ import annotations

import dataclasses
import hashlib
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadConfig, BadInput, NodewireError, NotAllowed, NotFound, OverBudget
from nodewire.pay.accounts import debts, dues
from nodewire.pay.accounts.debts import Debt, JobBudget, Key
from nodewire.pay.accounts.dues import Due
from nodewire.pay.accounts.ledger import Expenses, Ledger, Quote
from nodewire.pay.lightning.wallet import Receipt

JOB, ALICE, BOB, CUSTOMER = "10" * 32, "aa" * 32, "bb" * 32, "cc" * 32
PREIMAGES = [bytes([n]).hex() * 32 for n in range(8)]
HASHES = [hashlib.sha256(bytes.fromhex(p)).hexdigest() for p in PREIMAGES]
KEY = Key(JOB, ALICE, 0)

debt_events = st.lists(
    st.one_of(
        st.integers(0, 2).map(lambda n: debts.DebtInvoice(f"lnbcrt{n}", HASHES[n])),
        st.just(debts.PaymentAttempt("w")),
        st.integers(0, 2).map(lambda n: debts.DebtPayment(HASHES[n], PREIMAGES[n], n)),
        st.integers(0, 2).map(lambda n: debts.PaymentFailure(HASHES[n], "no route")),
    ),
    max_size=12,
)
due_events = st.lists(
    st.one_of(
        st.integers(0, 2).map(lambda n: dues.DueInvoice(HASHES[n])),
        st.integers(0, 2).map(lambda n: dues.DueSettlement(HASHES[n], PREIMAGES[n], 1_000, n)),
        st.sampled_from(["r1", "r2"]).map(dues.DueReceipt),
    ),
    max_size=12,
)


def run(apply, log, entry):
    accepted = []
    for event in log:
        try:
            after = apply(event, entry)
        except NodewireError:
            continue
        accepted.append((event, entry, after))
        entry = after
    return entry, accepted


@given(debt_events)
def test_a_debt_is_paid_once_and_only_where_a_wallet_was_told_to_pay(log):
    _, steps = run(debts.apply, log, Debt(KEY, 1_000))
    paid = [before for event, before, after in steps if after.state == "paid" and before.state != "paid"]
    assert len(paid) <= 1
    for before in paid:
        assert {one.state for one in before.payments} & {"paying", "failed"}


@given(debt_events)
def test_an_invoice_is_replaced_only_when_nothing_can_have_been_paid_on_it(log):
    for _, before, after in run(debts.apply, log, Debt(KEY, 1_000))[1]:
        assert [one.bolt11 for one in after.payments][: len(before.payments)] == [one.bolt11 for one in before.payments]
        assert sum(one.state == "paying" for one in after.payments) <= 1
        if len(after.payments) > len(before.payments):
            assert before.state in ("planned", "invoiced", "failed")


@given(debt_events)
def test_a_step_of_a_debt_applied_twice_changes_nothing(log):
    for event, _, after in run(debts.apply, log, Debt(KEY, 1_000))[1]:
        assert debts.apply(event, after) == after


@given(due_events)
def test_a_due_is_cleared_by_one_payment_and_has_one_receipt(log):
    _, steps = run(dues.apply, log, Due(KEY, CUSTOMER, 1_000, 100))
    assert len({after.payment_hash for _, _, after in steps} - {None}) <= 1
    assert len({after.receipt for _, _, after in steps} - {None}) <= 1
    assert all(after.payment_hash is not None for _, _, after in steps if after.receipt is not None)
    for event, _, after in steps:
        assert dues.apply(event, after) == after


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    yield ledger
    ledger.close()


def pay(ledger, key, n, amount_msat=1_000, fee_msat=0):
    ledger.plan(key, amount_msat)
    ledger.record(key, debts.DebtInvoice(f"lnbcrt{n}", HASHES[n]))
    ledger.record(key, debts.PaymentAttempt("w"))
    return ledger.record(key, debts.DebtPayment(HASHES[n], PREIMAGES[n], fee_msat))


def test_a_debt_is_entered_once_and_found_as_it_stands(ledger):
    paid = pay(ledger, KEY, 0)
    assert ledger.plan(KEY, 1_000) == paid == ledger.debt(KEY)
    with pytest.raises(NotAllowed, match="amount"):
        ledger.plan(KEY, 2_000)
    assert ledger.record(KEY, debts.DebtInvoice("another", HASHES[1])) == paid


def pay_begun(ledger, n):
    ledger.record(KEY, debts.DebtInvoice(f"lnbcrt{n}", HASHES[n]))
    return ledger.record(KEY, debts.PaymentAttempt("w"))


def test_a_failure_that_is_told_late_is_that_of_its_own_payment(ledger):
    """Another process has begun to pay another invoice meanwhile."""
    ledger.plan(KEY, 1_000)
    pay_begun(ledger, 0)
    assert ledger.record(KEY, debts.PaymentFailure(HASHES[0], "no route")).state == "failed"
    assert pay_begun(ledger, 1).state == "paying"
    assert ledger.record(KEY, debts.PaymentFailure(HASHES[0], "no route")).state == "paying"
    assert ledger.record(KEY, debts.DebtInvoice("lnbcrt2", HASHES[2])).payment_hash == HASHES[1]
    paid = ledger.record(KEY, debts.DebtPayment(HASHES[1], PREIMAGES[1], 5))
    assert (paid.state, paid.preimage, [one.state for one in paid.payments]) == (
        "paid",
        PREIMAGES[1],
        ["failed", "paid"],
    )
    assert ledger.record(KEY, debts.PaymentFailure(HASHES[1], "lost")) == paid == ledger.debt(KEY)


def test_an_invoice_whose_payment_failed_is_not_tried_again(ledger):
    ledger.plan(KEY, 1_000)
    pay_begun(ledger, 0)
    ledger.record(KEY, debts.PaymentFailure(HASHES[0], "no route"))
    with pytest.raises(NotAllowed, match="tried before"):
        ledger.record(KEY, debts.DebtInvoice("lnbcrt0", HASHES[0]))
    assert ledger.record(KEY, debts.PaymentAttempt("w")).state == "failed"


def test_every_payment_that_settled_counts_as_spent_even_if_the_wallet_had_said_that_it_failed(ledger):
    ledger.plan(KEY, 1_000)
    pay_begun(ledger, 0)
    ledger.record(KEY, debts.PaymentFailure(HASHES[0], "no route"))
    pay_begun(ledger, 1)
    for n in range(2):
        ledger.record(KEY, debts.DebtPayment(HASHES[n], PREIMAGES[n], 3))
    assert (ledger.debt(KEY).state, ledger.spent()) == ("paid", Expenses(2_000, 6, 0))


@pytest.mark.parametrize("event", [debts.DebtPayment(HASHES[3], PREIMAGES[3], 0), debts.PaymentFailure(HASHES[3], "")])
def test_of_a_payment_that_is_not_the_debts_own_nothing_is_believed(ledger, event):
    ledger.plan(KEY, 1_000)
    before = pay_begun(ledger, 0)
    with pytest.raises(NotFound, match="payment_hash"):
        ledger.record(KEY, event)
    assert ledger.debt(KEY) == before


def test_each_wallet_has_a_cursor_of_its_own(ledger):
    for wallet, cursor in (("a", 21), ("b", 4), ("a", 22)):
        assert ledger.settled(came(5, cursor=cursor), wallet) is None
    assert [ledger.cursor(wallet) for wallet in ("a", "b", "c")] == ["22", "4", ""]


VERSION_3 = """
CREATE TABLE debts (
    job TEXT NOT NULL, payee TEXT NOT NULL, chunk INTEGER NOT NULL, attempt INTEGER NOT NULL,
    amount_msat INTEGER NOT NULL, state TEXT NOT NULL, bolt11 TEXT, payment_hash TEXT UNIQUE, preimage TEXT,
    fee_msat INTEGER NOT NULL, reason TEXT NOT NULL, lnurl TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (job, payee, chunk, attempt)
) STRICT;
CREATE INDEX debts_unpaid ON debts (state) WHERE state <> 'paid';
CREATE TABLE quotes (
    payment_hash TEXT PRIMARY KEY, job TEXT NOT NULL, payee TEXT NOT NULL, chunk INTEGER NOT NULL,
    attempt INTEGER NOT NULL, zap_request TEXT NOT NULL, bolt11 TEXT NOT NULL, overpaid_msat INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE cursor (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), at INTEGER NOT NULL) STRICT;
PRAGMA user_version = 3;
"""


DUES_3 = """
CREATE TABLE dues (
    job TEXT NOT NULL, payee TEXT NOT NULL, chunk INTEGER NOT NULL, attempt INTEGER NOT NULL,
    customer TEXT NOT NULL, amount_msat INTEGER NOT NULL, due_by_s INTEGER NOT NULL, state TEXT NOT NULL,
    payment_hash TEXT, preimage TEXT, settled_at_s INTEGER NOT NULL, receipt TEXT,
    PRIMARY KEY (job, payee, chunk, attempt)
) STRICT;
"""


def test_a_ledger_of_version_3_keeps_its_debts_their_payments_and_quotes(tmp_path):
    db = sqlite3.connect(tmp_path / "ledger.db")
    db.executescript(VERSION_3)
    rows = [
        (JOB, ALICE, 0, 0, 1_000, "paid", "lnbcrt0", HASHES[0], PREIMAGES[0], 7, "", "lnurl1a"),
        (JOB, ALICE, 1, 0, 2_000, "planned", None, None, None, 0, "", "lnurl1a"),
        (JOB, BOB, 0, 0, 3_000, "paying", "lnbcrt2", HASHES[2], None, 0, "", ""),
        (JOB, BOB, 1, 0, 4_000, "failed", "lnbcrt3", HASHES[3], None, 0, "no route", ""),
    ]
    db.executemany(f"INSERT INTO debts VALUES ({', '.join('?' * 12)})", rows)
    db.execute("INSERT INTO quotes VALUES (?, ?, ?, 9, 0, '{}', 'lnbcrt4', 0)", (HASHES[4], JOB, ALICE))
    db.execute("INSERT INTO cursor VALUES (1, 21)")
    db.commit()
    db.close()
    ledger = Ledger(tmp_path / "ledger.db")
    found = ledger.debts_of(JOB)
    assert [(one.key.payee, one.key.chunk, one.amount_msat, one.state, one.lnurl) for one in found] == [
        (row[1], row[2], row[4], row[5], row[11]) for row in rows
    ]
    assert [(one.bolt11, one.payment_hash, one.preimage, one.fee_msat, one.reason) for one in found] == [
        tuple(row[6:11]) for row in rows
    ]
    assert (ledger.spent(), ledger.spent(payee=BOB)) == (Expenses(1_000, 7, 9_000), Expenses(0, 0, 7_000))
    assert ledger.quotes(Key(JOB, ALICE, 9)) == [quote(4, Key(JOB, ALICE, 9))]
    assert ledger.cursor("w") == ""  # whose the old cursor was is not known
    paid = ledger.record(Key(JOB, BOB, 0), debts.DebtPayment(HASHES[2], PREIMAGES[2], 0))
    assert paid.state == "paid"
    ledger.close()


def test_another_chunk_attempt_or_payee_is_another_debt(ledger):
    keys = [KEY, Key(JOB, ALICE, 1), Key(JOB, ALICE, 0, 1), Key(JOB, BOB, 0), Key("11" * 32, ALICE, 0)]
    for n, key in enumerate(keys):
        pay(ledger, key, n)
    assert ledger.spent().paid_msat == 5_000
    assert ledger.unpaid() == []


def test_one_payment_does_not_count_for_two_debts(ledger):
    pay(ledger, KEY, 0)
    other = Key(JOB, BOB, 0)
    ledger.plan(other, 1_000)
    with pytest.raises(NotAllowed, match="payment_hash"):
        ledger.record(other, debts.DebtInvoice("lnbcrt0", HASHES[0]))
    assert ledger.debt(other).state == "planned"


def test_a_preimage_of_another_hash_pays_nothing(ledger):
    ledger.plan(KEY, 1_000)
    ledger.record(KEY, debts.DebtInvoice("lnbcrt0", HASHES[0]))
    ledger.record(KEY, debts.PaymentAttempt("w"))
    with pytest.raises(BadInput, match="preimage"):
        ledger.record(KEY, debts.DebtPayment(HASHES[0], PREIMAGES[1], 0))
    assert ledger.debt(KEY).state == "paying"


def test_what_was_spent_is_known_by_job_and_by_payee(ledger):
    pay(ledger, KEY, 0, 1_000, fee_msat=3)
    pay(ledger, Key(JOB, BOB, 0), 1, 500, fee_msat=2)
    pay(ledger, Key("11" * 32, ALICE, 0), 2, 70)
    ledger.plan(Key(JOB, BOB, 1), 40)
    assert ledger.spent() == Expenses(1_570, 5, 40)
    assert ledger.spent(job=JOB) == Expenses(1_500, 5, 40)
    assert ledger.spent(payee=ALICE) == Expenses(1_070, 3, 0)
    assert ledger.spent(job=JOB, payee=BOB) == Expenses(500, 2, 40)
    assert ledger.spent(job="99" * 32) == Expenses(0, 0, 0)


def test_a_budget_counts_what_is_paid_and_planned_and_leaves_out_fees(ledger):
    of_alice = frozenset({ALICE})
    pay(ledger, KEY, 0, 1_000, fee_msat=10)
    ledger.plan(Key(JOB, ALICE, 1), 500, budget=JobBudget(1_500, of_alice))
    with pytest.raises(OverBudget):
        ledger.plan(Key(JOB, ALICE, 2), 1, budget=JobBudget(1_500, of_alice))
    assert ledger.plan(Key(JOB, ALICE, 1), 500, budget=JobBudget(0, of_alice)).amount_msat == 500


def test_a_budget_of_providers_is_neither_used_up_nor_widened_by_what_others_get(ledger):
    budget = JobBudget(1_500, frozenset({ALICE}))
    ledger.plan(Key(JOB, BOB, 0), 5_000)
    ledger.plan(Key(JOB, ALICE, 0), 1_500, budget=budget)
    with pytest.raises(OverBudget):
        ledger.plan(Key(JOB, ALICE, 1), 1, budget=budget)


@pytest.mark.parametrize("amount_msat", [0, -1])
def test_nothing_is_no_debt(ledger, amount_msat):
    with pytest.raises(NotAllowed):
        ledger.plan(KEY, amount_msat)


def test_the_book_is_on_disk_when_a_method_returns(tmp_path):
    path = tmp_path / "ledger.db"
    ledger = Ledger(path)
    pay(ledger, KEY, 0)
    other = Ledger(path)
    assert other.debt(KEY).state == "paid"
    other.close()
    ledger.close()


def test_a_ledger_of_a_later_version_is_not_touched(tmp_path):
    path = tmp_path / "ledger.db"
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 5")
    db.close()
    with pytest.raises(BadConfig, match="version 5"):
        Ledger(path)


def owe(ledger, key=KEY, amount_msat=1_000, customer=CUSTOMER, due_by_s=100):
    return ledger.owe(Due(key, customer, amount_msat, due_by_s))


def came(n, amount_msat=1_000, at_s=50, cursor=0):
    """What the provider's wallet says of the payment by hash `n`."""
    return Receipt(str(cursor), HASHES[n], PREIMAGES[n], amount_msat, at_s)


def quote(n, key=KEY):
    return Quote(key, HASHES[n], "{}", f"lnbcrt{n}")


def test_a_customer_is_in_debt_from_the_due_time_until_its_payment_settles(ledger):
    owe(ledger)
    assert not ledger.in_debt(CUSTOMER, 99.9)
    assert ledger.in_debt(CUSTOMER, 100)
    assert not ledger.in_debt(BOB, 100)
    ledger.quoted(quote(0))
    assert (ledger.in_debt(CUSTOMER, 100), ledger.owed_msat(CUSTOMER)) == (True, 1_000)
    ledger.settled(came(0, 1_000, 50, cursor=7), "w")
    assert (ledger.in_debt(CUSTOMER, 100), ledger.owed_msat(CUSTOMER)) == (False, 0)
    assert (ledger.earned_msat(), ledger.earned_msat(job=JOB), ledger.earned_msat(job="99" * 32)) == (1_000, 1_000, 0)
    assert (ledger.cursor("w"), ledger.cursor("another")) == ("7", "")


def test_any_of_a_dues_invoices_clears_it_and_a_second_payment_is_kept_as_overpaid(ledger):
    owe(ledger)
    ledger.quoted(quote(0))
    ledger.quoted(quote(1))
    assert ledger.quotes(KEY) == [quote(0), quote(1)]
    ledger.settled(came(0, 1_000, 50, cursor=1), "w")
    ledger.settled(came(0, 1_000, 50, cursor=1), "w")
    assert ledger.overpaid_msat(CUSTOMER) == 0
    ledger.settled(came(1, 1_000, 60, cursor=2), "w")
    assert ledger.due(KEY).payment_hash == HASHES[0]
    assert ledger.overpaid_msat(CUSTOMER) == 1_000
    with pytest.raises(NotAllowed):
        ledger.quoted(quote(2))


def test_a_payment_for_something_else_only_moves_the_cursor(ledger):
    assert ledger.settled(came(5, 9, 1, cursor=3), "w") is None
    assert ledger.settled(came(6, 9, 1, cursor=2), "w") is None
    assert ledger.cursor("w") == "2"


def test_a_receipt_follows_a_settlement_and_is_published_once(ledger):
    owe(ledger)
    ledger.quoted(quote(0))
    with pytest.raises(NotAllowed):
        ledger.receipted(KEY, "r1")
    due = ledger.settled(came(0, 1_000, 50, cursor=1), "w")
    assert ledger.unreceipted() == [due]
    assert ledger.receipted(KEY, "r1") == ledger.receipted(KEY, "r1") == ledger.due(KEY)
    assert ledger.unreceipted() == []
    with pytest.raises(NotAllowed):
        ledger.receipted(KEY, "r2")


def test_a_due_is_entered_once(ledger):
    due = owe(ledger)
    assert owe(ledger, due_by_s=999) == due
    for change in ({"amount_msat": 2}, {"customer": BOB}):
        with pytest.raises(NotAllowed):
            owe(ledger, **change)
    with pytest.raises(NotFound):
        ledger.due(dataclasses.replace(KEY, chunk=9))


@settings(max_examples=25, deadline=None)
@given(debt_events)
def test_the_stored_debt_is_the_debt_of_the_machine(log):
    ledger = Ledger(":memory:")
    stored = debt = ledger.plan(KEY, 1_000)
    for event in log:
        try:
            debt = debts.apply(event, debt)
        except NodewireError as error:
            with pytest.raises(type(error)):
                ledger.record(KEY, event)
        else:
            stored = ledger.record(KEY, event)
        assert stored == debt == ledger.debt(KEY)
    ledger.close()


def test_a_ledger_of_the_first_version_goes_on(tmp_path):
    path = tmp_path / "ledger.db"
    db = sqlite3.connect(path)
    db.executescript(VERSION_3)
    db.execute("INSERT INTO debts VALUES (?, ?, 0, 0, 1000, 'planned', NULL, NULL, NULL, 0, '', '')", (JOB, ALICE))
    db.execute("ALTER TABLE debts DROP COLUMN lnurl")
    db.execute("PRAGMA user_version = 1")
    db.commit()
    db.close()
    after = Ledger(path)
    assert after.debt(KEY).lnurl == ""
    assert after.plan(Key(JOB, ALICE, 7), 5, lnurl="lnurl1x").lnurl == "lnurl1x"
    after.close()
    again = Ledger(path)
    assert [debt.lnurl for debt in again.unpaid()] == ["", "lnurl1x"]
    again.close()


def test_a_ledger_of_the_second_version_goes_on_and_its_dues_count_as_before(tmp_path):
    path = tmp_path / "ledger.db"
    db = sqlite3.connect(path)
    db.executescript(VERSION_3 + "CREATE TABLE ended (job TEXT PRIMARY KEY) STRICT;" + DUES_3)
    db.execute("INSERT INTO ended VALUES (?)", (JOB,))
    row = (JOB, ALICE, CUSTOMER)
    db.execute("INSERT INTO dues VALUES (?, ?, 0, 0, ?, 1000, 100, 'due', NULL, NULL, 0, NULL)", row)
    db.execute("PRAGMA user_version = 2")
    db.commit()
    db.close()
    after = Ledger(path)
    after.interrupted()
    assert after.in_debt(CUSTOMER, 100)
    assert (after.has_ended(JOB), after.count_received(JOB)) == (True, None)
    after.end_job("11" * 32, 2)
    assert after.count_received("11" * 32) == 2
    after.close()


# Jobs that broke off.

DAY_S = dues.BROKEN_S


def key_of(n, chunk=0):
    return Key(f"{n:064x}", ALICE, chunk)


def break_off(ledger, n, at_s, chunks=1):
    """Customer's job `n` breaks off at `at_s`, with something claimed."""
    for chunk in range(chunks):
        ledger.owe(Due(key_of(n, chunk), CUSTOMER, 1_000, at_s + 30), under_way=True)
    ledger.broke_off(key_of(n).job, at_s)


def settle(ledger, n, chunk=0):
    invoice = n + 4 * chunk
    ledger.quoted(quote(invoice, key_of(n, chunk)))
    ledger.settled(came(invoice, 1_000, 50, cursor=invoice), "w")


def test_three_jobs_that_broke_off_shut_nobody_out_and_a_fourth_does_until_the_oldest_is_paid(ledger):
    for n in range(3):
        break_off(ledger, n, 100 + n, chunks=2)
        assert not ledger.in_debt(CUSTOMER, 10**9)
    break_off(ledger, 3, 103)
    assert ledger.in_debt(CUSTOMER, 103)  # at once: whoever breaks jobs off on purpose would else do so again meanwhile
    assert not ledger.in_debt(BOB, 10**9)
    settle(ledger, 0)
    assert ledger.in_debt(CUSTOMER, 104)  # of its two chunks one is unpaid
    settle(ledger, 0, chunk=1)
    assert not ledger.in_debt(CUSTOMER, 10**9)
    assert ledger.owed_msat(CUSTOMER) == 5_000  # they stay owed


def test_what_came_of_a_job_that_broke_off_is_a_debt_like_any(ledger):
    break_off(ledger, 0, 100)
    owe(ledger, key_of(0, 1), due_by_s=130)
    assert (ledger.in_debt(CUSTOMER, 129), ledger.in_debt(CUSTOMER, 130)) == (False, True)
    settle(ledger, 0, chunk=1)
    assert not ledger.in_debt(CUSTOMER, 130)


def test_one_that_counted_counts_until_it_is_paid_and_those_of_other_days_do_not_add_up(ledger):
    for n in range(4):
        break_off(ledger, n, 100 + n)
    assert ledger.in_debt(CUSTOMER, 100 + 9 * DAY_S)
    settle(ledger, 2)
    for n in range(4, 7):
        break_off(ledger, n, 102 + n + DAY_S)
    assert not ledger.in_debt(CUSTOMER, 10**9)


def test_a_job_under_way_counts_as_any_until_it_breaks_off_and_one_that_went_through_always(ledger):
    ledger.owe(Due(KEY, CUSTOMER, 1_000, 100), under_way=True)
    assert (ledger.in_debt(CUSTOMER, 99), ledger.in_debt(CUSTOMER, 100)) == (False, True)
    ledger.broke_off(JOB, 90)
    assert not ledger.in_debt(CUSTOMER, 100)
    ledger.went_through(JOB)  # it has broken off
    assert not ledger.in_debt(CUSTOMER, 100)
    other = Key("11" * 32, ALICE, 0)
    ledger.owe(Due(other, BOB, 1_000, 100), under_way=True)
    ledger.went_through(other.job)
    ledger.broke_off(other.job, 90)  # it has ended
    assert ledger.in_debt(BOB, 100)


def test_a_restart_forgets_no_broken_job_and_counts_none_that_it_broke_off_itself(tmp_path):
    path = tmp_path / "ledger.db"
    before = Ledger(path)
    for n in range(3):
        break_off(before, n, 100 + n)
    for n in range(3, 8):
        before.owe(Due(key_of(n), CUSTOMER, 1_000, 130), under_way=True)
    before.owe(Due(key_of(8), ALICE, 1_000, 130))  # a round's of training
    before.close()
    after = Ledger(path)
    assert after.in_debt(CUSTOMER, 130)
    after.interrupted()
    assert (after.in_debt(CUSTOMER, 10**9), after.in_debt(ALICE, 10**9)) == (False, True)
    assert after.owed_msat(CUSTOMER) == 8_000
    settle(after, 4)  # who wants to may pay it all the same
    assert after.owed_msat(CUSTOMER) == 7_000
    break_off(after, 9, 200)
    assert after.in_debt(CUSTOMER, 200)
    after.close()


def test_a_job_that_its_provider_broke_off_itself_counts_for_nothing_and_another_does(ledger):
    for n in range(6):
        ledger.owe(Due(key_of(n), CUSTOMER, 1_000, 130), under_way=True)
        ledger.interrupted(key_of(n).job)
    assert not ledger.in_debt(CUSTOMER, 10**9)
    ledger.owe(Due(key_of(6), CUSTOMER, 1_000, 130), under_way=True)
    ledger.interrupted(key_of(5).job)
    assert ledger.in_debt(CUSTOMER, 130)
    ledger.broke_off(key_of(6).job, 140)
    assert not ledger.in_debt(CUSTOMER, 10**9)


@given(st.lists(st.integers(0, 3 * DAY_S), max_size=12).map(sorted))
def test_no_more_than_three_of_any_day_are_borne(broken_at_s):
    """What is left when all that count are paid, oldest first, is never more than three within a day."""
    left = list(broken_at_s)
    while dues.is_too_much(left):
        left.remove(next(at for at, later in zip(left, left[dues.MAX_BROKEN :], strict=False) if later - at < DAY_S))
    for at in left:
        assert sum(at <= other < at + DAY_S for other in left) <= dues.MAX_BROKEN
    if all(sum(at <= other < at + DAY_S for other in broken_at_s) <= dues.MAX_BROKEN for at in broken_at_s):
        assert left == broken_at_s


def test_a_claim_that_was_paid_or_forgone_is_kept_by_nobody_and_may_be_owed_anew(tmp_path):
    """It was told, and the process died before it noted so; or what is forgone is asked for a second time."""
    ledger = Ledger(tmp_path / "ledger.db")
    for chunk in range(2):
        due = Due(Key(JOB, ALICE, chunk), CUSTOMER, 1_000, 100)
        ledger.owe(due, under_way=True, claim="{}")
    ledger.quoted(Quote(Key(JOB, ALICE, 0), HASHES[0], "{}", "lnbcrt1"))
    ledger.settled(came(0, 1_000, 50, cursor=1), "w")
    ledger.forgo(Key(JOB, ALICE, 0))
    ledger.forgo(due.key)
    assert ledger.due(Key(JOB, ALICE, 0)).state == "settled"
    assert ledger.untold() == []
    book = sqlite3.connect(tmp_path / "ledger.db")
    assert book.execute("SELECT count(*) FROM untold").fetchone() == (0,)
    book.close()
    assert ledger.owe(due, under_way=True, claim="{}") == due
    assert [key for key, _ in ledger.untold()] == [due.key]
    ledger.close()
