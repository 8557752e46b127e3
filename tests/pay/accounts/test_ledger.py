"""Debts and dues: nothing is paid twice, nothing owed is forgotten, and the book survives its process."""

from __future__ import annotations

import dataclasses
import hashlib
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nodewire.errors import BadConfig, BadInput, NodewireError, NotAllowed, NotFound, OverBudget
from nodewire.pay.accounts import debts, dues
from nodewire.pay.accounts.debt_book import Expenses, Tab
from nodewire.pay.accounts.debts import JobBudget, Key, Payment
from nodewire.pay.accounts.due_book import Quote
from nodewire.pay.accounts.dues import CreditTerms, Due
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.lightning.wallet import Receipt

JOB, ALICE, BOB, CUSTOMER = "10" * 32, "aa" * 32, "bb" * 32, "cc" * 32
PREIMAGES = [bytes([n]).hex() * 32 for n in range(8)]
HASHES = [hashlib.sha256(bytes.fromhex(p)).hexdigest() for p in PREIMAGES]
KEY = Key(JOB, ALICE, 0)

payment_events = st.lists(
    st.one_of(
        st.sampled_from(["v", "w"]).map(debts.PaymentAttempt),
        st.integers(0, 2).map(lambda n: debts.PaymentSettlement(PREIMAGES[0], n)),
        st.just(debts.PaymentFailure("no route")),
    ),
    max_size=12,
)


def run(log, payment):
    accepted = []
    for event in log:
        try:
            after = debts.apply(event, payment)
        except NodewireError:
            continue
        accepted.append((event, payment, after))
        payment = after
    return accepted


@given(payment_events)
def test_a_payment_settles_once_only_where_a_wallet_was_told_to_make_it_and_stays_that_wallets(log):
    steps = run(log, Payment(HASHES[0], "lnbcrt0", 1_000))
    paid = [before for _, before, after in steps if after.state == "paid" and before.state != "paid"]
    assert len(paid) <= 1 and all(before.state in ("paying", "failed") and before.wallet for before in paid)
    assert len({after.wallet for _, _, after in steps} - {""}) <= 1
    for _, before, after in steps:
        assert ((before.state, after.state) != ("failed", "paying") and before.state != "paid") or after == before
    for event, _, after in steps:
        assert debts.apply(event, after) == after


@given(st.integers(0, 5_000), st.lists(st.tuples(st.integers(1, 900), st.integers(0, 2)), max_size=9))
def test_a_balance_settles_whole_dues_the_named_one_first_and_nothing_is_lost(balance_msat, made):
    unpaid = [Due(Key(f"{job:064x}", ALICE, n), CUSTOMER, amount, 100) for n, (amount, job) in enumerate(made)]
    named = unpaid[-1].key if unpaid else None
    settled, left_msat = dues.settle(balance_msat, unpaid, named)
    assert sum(due.amount_msat for due in settled) + left_msat == balance_msat and left_msat >= 0
    assert not settled or settled[0].key == named
    jobs = [due.key.job == named.job for due in settled]
    assert jobs == sorted(jobs, reverse=True)


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    yield ledger
    ledger.close()


def invoiced(ledger, n, *keys, amount_msat=None, **options):
    amount_msat = amount_msat or sum(ledger.debt(key).left_msat for key in keys)
    return ledger.begin(keys[0].payee, keys, Payment(HASHES[n], f"lnbcrt{n}", amount_msat), **options)


def attempted(ledger, n, *keys, **options):
    invoiced(ledger, n, *keys, **options)
    return ledger.record(HASHES[n], debts.PaymentAttempt("w"))


def settle_payment(ledger, n, fee_msat=0):
    return ledger.record(HASHES[n], debts.PaymentSettlement(PREIMAGES[n], fee_msat))


def pay(ledger, key, n, amount_msat=1_000, fee_msat=0):
    ledger.plan(key, amount_msat)
    attempted(ledger, n, key)
    settle_payment(ledger, n, fee_msat)
    return ledger.debt(key)


def states(ledger, *keys):
    return [ledger.debt(key).state for key in keys]


def test_a_debt_is_entered_once_and_found_as_it_stands(ledger):
    paid = pay(ledger, KEY, 0)
    assert ledger.plan(KEY, 1_000) == paid == ledger.debt(KEY)
    with pytest.raises(NotAllowed, match="amount"):
        ledger.plan(KEY, 2_000)
    assert invoiced(ledger, 1, KEY, amount_msat=1_000) == paid


def test_a_failure_that_is_told_late_is_that_of_its_own_payment(ledger):
    """Another process has begun to pay another invoice meanwhile."""
    ledger.plan(KEY, 1_000)
    attempted(ledger, 0, KEY)
    ledger.record(HASHES[0], debts.PaymentFailure("no route"))
    assert states(ledger, KEY) == ["failed"]
    assert attempted(ledger, 1, KEY).state == "paying"
    ledger.record(HASHES[0], debts.PaymentFailure("no route"))
    assert states(ledger, KEY) == ["paying"]
    assert invoiced(ledger, 2, KEY).payment_hash == HASHES[1]
    settle_payment(ledger, 1, 5)
    paid = ledger.debt(KEY)
    assert (paid.state, paid.preimage, paid.fee_msat) == ("paid", PREIMAGES[1], 5)
    assert [part.payment.state for part in paid.parts] == ["failed", "paid"]
    ledger.record(HASHES[1], debts.PaymentFailure("lost"))
    assert ledger.debt(KEY) == paid


def test_an_invoice_whose_payment_failed_is_not_tried_again(ledger):
    ledger.plan(KEY, 1_000)
    attempted(ledger, 0, KEY)
    ledger.record(HASHES[0], debts.PaymentFailure("no route"))
    with pytest.raises(NotAllowed, match="before"):
        invoiced(ledger, 0, KEY)
    assert ledger.record(HASHES[0], debts.PaymentAttempt("w")).state == "failed"


def test_a_second_payment_of_a_debt_is_not_lost_it_is_paid_ahead(ledger):
    """The wallet had said that the first failed."""
    ledger.plan(KEY, 1_000)
    attempted(ledger, 0, KEY)
    ledger.record(HASHES[0], debts.PaymentFailure("no route"))
    attempted(ledger, 1, KEY)
    for n in range(2):
        settle_payment(ledger, n, 3)
    assert (states(ledger, KEY), ledger.spent()) == (["paid"], Expenses(1_000, 6, 0))
    assert ledger.tab(ALICE) == Tab(ALICE, owed_msat=0, ahead_msat=1_000, paid_msat=2_000, since_s=0)
    assert ledger.plan(Key(JOB, ALICE, 1), 600).state == "paid"
    assert ledger.plan(Key(JOB, ALICE, 2), 600).state == "planned"
    assert (ledger.tab(ALICE).owed_msat, ledger.tab(ALICE).ahead_msat) == (200, 0)
    assert attempted(ledger, 2, Key(JOB, ALICE, 2)).amount_msat == 200
    settle_payment(ledger, 2)
    assert (states(ledger, Key(JOB, ALICE, 2)), ledger.spent().paid_msat) == (["paid"], 2_200)


def test_one_payment_settles_many_debts_of_one_payee_and_its_rest_the_next(ledger):
    keys = [Key(JOB, ALICE, n) for n in range(3)]
    for key in keys[:2]:
        ledger.plan(key, 6)
    ledger.plan(Key(JOB, BOB, 0), 6)
    assert attempted(ledger, 0, keys[1], keys[0], amount_msat=1_000).state == "paying"
    assert states(ledger, *keys[:2]) == ["paying", "paying"]
    settle_payment(ledger, 0, 9)
    assert (states(ledger, *keys[:2]), ledger.tab(ALICE).ahead_msat) == (["paid", "paid"], 988)
    assert [ledger.debt(key).fee_msat for key in keys[:2]] == [0, 9]  # of the payment once
    assert ledger.spent(payee=ALICE) == Expenses(12, 9, 0)
    assert ledger.plan(keys[2], 6).payment_hash == HASHES[0]
    assert [debt.key for debt in ledger.settled_by(HASHES[0])] == keys
    assert [tab.payee for tab in ledger.tabs()] == [BOB, ALICE]


def test_what_a_payment_is_under_way_for_no_other_one_is_begun_for(ledger):
    first, second = KEY, Key(JOB, ALICE, 1)
    for key in (first, second):
        ledger.plan(key, 1_000)
    attempted(ledger, 0, first)
    assert invoiced(ledger, 1, first, second, amount_msat=2_000).payment_hash == HASHES[0]
    assert states(ledger, second) == ["planned"]  # nothing was entered
    assert invoiced(ledger, 1, second, first, amount_msat=2_000).payment_hash == HASHES[1]
    assert ledger.settled_by(HASHES[1]) == [ledger.debt(second)]
    with pytest.raises(NotAllowed, match="less"):
        invoiced(ledger, 2, second, amount_msat=999, expired=[HASHES[1]])
    assert invoiced(ledger, 2, second, amount_msat=1_000, expired=[HASHES[1]]).payment_hash == HASHES[2]


@pytest.mark.parametrize("event", [debts.PaymentSettlement(PREIMAGES[3], 0), debts.PaymentFailure("")])
def test_of_a_payment_that_is_not_known_nothing_is_believed(ledger, event):
    ledger.plan(KEY, 1_000)
    attempted(ledger, 0, KEY)
    before = ledger.debt(KEY)
    with pytest.raises(NotFound, match="payment_hash"):
        ledger.record(HASHES[3], event)
    assert ledger.debt(KEY) == before


def test_each_wallet_has_a_cursor_of_its_own(ledger):
    for wallet, cursor in (("a", 21), ("b", 4), ("a", 22)):
        assert ledger.settled(came(5, cursor=cursor), wallet) == []
    assert [ledger.cursor(wallet) for wallet in ("a", "b", "c")] == ["22", "4", ""]


DUES_3 = """
CREATE TABLE dues (
    job TEXT NOT NULL, payee TEXT NOT NULL, chunk INTEGER NOT NULL, attempt INTEGER NOT NULL,
    customer TEXT NOT NULL, amount_msat INTEGER NOT NULL, due_by_s INTEGER NOT NULL, state TEXT NOT NULL,
    payment_hash TEXT, preimage TEXT, settled_at_s INTEGER NOT NULL, receipt TEXT,
    PRIMARY KEY (job, payee, chunk, attempt)
) STRICT;
"""


VERSION_3 = (
    """
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
    + DUES_3
)


VERSION_4 = """
CREATE TABLE debts (
    job TEXT NOT NULL, payee TEXT NOT NULL, chunk INTEGER NOT NULL, attempt INTEGER NOT NULL,
    amount_msat INTEGER NOT NULL, state TEXT NOT NULL, lnurl TEXT NOT NULL, PRIMARY KEY (job, payee, chunk, attempt)
) STRICT;
CREATE TABLE payments (
    payment_hash TEXT PRIMARY KEY, job TEXT NOT NULL, payee TEXT NOT NULL, chunk INTEGER NOT NULL,
    attempt INTEGER NOT NULL, bolt11 TEXT NOT NULL, state TEXT NOT NULL, wallet TEXT NOT NULL, preimage TEXT,
    fee_msat INTEGER NOT NULL, reason TEXT NOT NULL
) STRICT;
CREATE INDEX payments_of_debt ON payments (job, payee, chunk, attempt);
CREATE TABLE quotes (
    payment_hash TEXT PRIMARY KEY, job TEXT NOT NULL, payee TEXT NOT NULL, chunk INTEGER NOT NULL,
    attempt INTEGER NOT NULL, zap_request TEXT NOT NULL, bolt11 TEXT NOT NULL,
    overpaid_msat INTEGER NOT NULL DEFAULT 0, wallet TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX quotes_of_due ON quotes (job, payee, chunk, attempt);
CREATE TABLE cursors (wallet TEXT PRIMARY KEY, cursor TEXT NOT NULL) STRICT;
PRAGMA user_version = 4;
"""


def test_a_ledger_of_version_4_keeps_its_payments_and_what_was_overpaid_becomes_a_balance(tmp_path):
    db = sqlite3.connect(tmp_path / "ledger.db")
    db.executescript(VERSION_4 + DUES_3)
    chunk = (JOB, ALICE, 0, 0)
    db.execute("INSERT INTO debts VALUES (?, ?, ?, ?, 1000, 'paid', 'lnurl1a')", chunk)
    for n, state, preimage in ((0, "failed", None), (1, "paid", PREIMAGES[1])):
        row = (HASHES[n], *chunk, f"lnbcrt{n}", state, "w", preimage, n)
        db.execute("INSERT INTO payments VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '')", row)
    for n, state, receipt in ((0, "receipted", "r0"), (1, "settled", None), (2, "invoiced", None)):
        payment_hash, preimage = (HASHES[n], PREIMAGES[n]) if n < 2 else (None, None)
        row = (JOB, ALICE, n, CUSTOMER, state, payment_hash, preimage, 50 * n, receipt)
        db.execute("INSERT INTO dues VALUES (?, ?, ?, 0, ?, 1000, 100, ?, ?, ?, ?, ?)", row)
        db.execute(
            "INSERT INTO quotes VALUES (?, ?, ?, ?, 0, '{}', 'lnbcrt', ?, 'w')", (HASHES[n], JOB, ALICE, n, n * 7)
        )
    db.execute("INSERT INTO cursors VALUES ('w', '21')")
    db.commit()
    db.close()
    ledger = Ledger(tmp_path / "ledger.db")
    paid = ledger.debt(KEY)
    assert (paid.state, paid.payment_hash, paid.fee_msat, paid.lnurl) == ("paid", HASHES[1], 1, "lnurl1a")
    assert ledger.spent() == Expenses(1_000, 1, 0)
    assert [ledger.due(Key(JOB, ALICE, n)).state for n in range(3)] == ["settled", "settled", "due"]
    (income,) = ledger.unreceipted()
    assert (income.quote.payment_hash, income.preimage, income.amount_msat) == (HASHES[1], PREIMAGES[1], 1_007)
    assert (ledger.balance_msat(CUSTOMER), ledger.paid_msat(CUSTOMER)) == (21, 2_021)
    assert (ledger.cursor("w"), ledger.earned_msat()) == ("21", 2_000)
    ledger.close()


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
    due = "(?, ?, 9, 0, ?, 1000, 100, 'invoiced', NULL, NULL, 0, NULL)"
    db.execute(f"INSERT INTO dues VALUES {due}", (JOB, ALICE, CUSTOMER))
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
    settle_payment(ledger, 2)
    assert states(ledger, Key(JOB, BOB, 0)) == ["paid"]
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
        invoiced(ledger, 0, other)
    assert ledger.debt(other).state == "planned"


def test_a_preimage_of_another_hash_pays_nothing(ledger):
    ledger.plan(KEY, 1_000)
    attempted(ledger, 0, KEY)
    with pytest.raises(BadInput, match="preimage"):
        ledger.record(HASHES[0], debts.PaymentSettlement(PREIMAGES[1], 0))
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
    db.execute("PRAGMA user_version = 8")
    db.close()
    with pytest.raises(BadConfig, match="version 8"):
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


def test_any_of_a_dues_invoices_clears_it_and_a_second_payment_is_the_customers_balance(ledger):
    owe(ledger)
    ledger.quoted(quote(0))
    ledger.quoted(quote(1))
    assert ledger.quotes(KEY) == [quote(0), quote(1)]
    assert [due.key for due in ledger.settled(came(0, 1_000, 50, cursor=1), "w")] == [KEY]
    assert ledger.settled(came(0, 1_000, 50, cursor=1), "w") == []
    assert ledger.balance_msat(CUSTOMER) == 0
    assert ledger.settled(came(1, 1_000, 60, cursor=2), "w") == []
    assert ledger.due(KEY).payment_hash == HASHES[0]
    assert (ledger.balance_msat(CUSTOMER), ledger.paid_msat(CUSTOMER)) == (1_000, 2_000)
    with pytest.raises(NotAllowed):
        ledger.quoted(quote(1))


def test_a_payment_settles_the_named_chunk_then_its_job_then_others_and_the_rest_what_comes_next(ledger):
    older, first, named = key_of(1), Key(JOB, ALICE, 0), Key(JOB, ALICE, 3)
    deposit = Key("77" * 32, ALICE, 0)
    ledger.owe(Due(deposit, CUSTOMER, 6, dues.NEVER_S), by_name=True)
    for key in (older, first, named):
        owe(ledger, key, 6)
    owe(ledger, Key(JOB, ALICE, 9), 6, customer=BOB)
    ledger.quoted(quote(0, named))
    assert [due.key for due in ledger.settled(came(0, 15), "w")] == [named, first]
    assert (ledger.balance_msat(CUSTOMER), ledger.owed_msat(CUSTOMER), ledger.owed_msat(BOB)) == (3, 12, 6)
    ledger.quoted(quote(1, older))
    assert [due.key for due in ledger.settled(came(1, 1_000), "w")] == [older]
    assert ledger.balance_msat(CUSTOMER) == 997  # no deposit is paid that is not named
    ahead = owe(ledger, key_of(2), 97)
    assert (ahead.state, ahead.payment_hash) == ("settled", HASHES[1])
    assert owe(ledger, key_of(3), 901).state == "due"
    assert ledger.balance_msat(CUSTOMER) == 900


def test_what_is_to_be_named_is_settled_by_no_payment_for_others_and_by_a_balance_when_it_is_named(ledger):
    owe(ledger, KEY, 5)
    part, other = Key("77" * 32, ALICE, 1), Key("78" * 32, ALICE, 0)
    ledger.owe(Due(part, CUSTOMER, 60, 100), by_name=True)
    ledger.owe(Due(other, CUSTOMER, 60, dues.NEVER_S), by_name=True)
    assert ledger.settle_by_name(part) == []
    ledger.quoted(quote(0))
    assert [due.key for due in ledger.settled(came(0, 105), "w")] == [KEY]
    assert (ledger.balance_msat(CUSTOMER), ledger.owed_msat(CUSTOMER)) == (100, 120)
    assert [(due.key, due.payment_hash) for due in ledger.settle_by_name(part)] == [(part, HASHES[0])]
    assert ledger.settle_by_name(part) == ledger.settle_by_name(other) == []  # 60 msat are due, 40 are there
    ledger.quoted(quote(1, other))
    assert [due.key for due in ledger.settled(came(1, 60), "w")] == [other]
    assert ledger.balance_msat(CUSTOMER) == 40


def test_what_is_given_up_is_settled_by_its_own_invoice_alone(ledger):
    part = Key("77" * 32, ALICE, 0)
    ledger.owe(Due(part, CUSTOMER, 60, dues.NEVER_S))
    ledger.set_by_name(part)
    ledger.quoted(quote(0, part))
    owe(ledger, KEY, 5)
    ledger.quoted(quote(1))
    ledger.forgo(part)
    assert [due.key for due in ledger.settled(came(1, 1_000), "w")] == [KEY]
    assert ledger.balance_msat(CUSTOMER) == 995
    assert [due.key for due in ledger.settled(came(0, 60), "w")] == [part]


def test_a_debt_that_its_payee_settled_by_what_is_ahead_takes_that_from_others(ledger):
    first, part = key_of(1), key_of(2)
    ledger.plan(KEY, 5)
    attempted(ledger, 0, KEY, amount_msat=105)
    settle_payment(ledger, 0)
    ledger.plan(part, 60, by_name=True)
    assert (ledger.tab(ALICE).ahead_msat, ledger.unpaid_to(ALICE)) == (100, [])
    assert ledger.plan(first, 130).left_msat == 30
    assert ledger.settle_by_ahead(part).state == "paid"
    assert (ledger.debt(first).left_msat, ledger.tab(ALICE).owed_msat) == (90, 90)
    ledger.plan(key_of(3), 50, by_name=True)
    assert ledger.settle_by_ahead(key_of(3)).left_msat == 10  # its payee has spent it on nothing else
    assert [debt.left_msat for debt in ledger.unpaid_to(ALICE)] == [130, 10]


def test_credit_grows_with_what_a_key_has_paid_and_shuts_out_only_what_is_beyond_it():
    ledger = Ledger(":memory:", CreditTerms(first_msat=10, most_msat=1_500))
    owe(ledger, key_of(0), 10)
    assert ledger.is_covered(CUSTOMER)
    assert ledger.in_debt(CUSTOMER, 100)  # who has paid nothing has earned nothing
    owe(ledger, key_of(1), 1)
    assert not ledger.is_covered(CUSTOMER)
    ledger.quoted(quote(0, key_of(0)))
    ledger.settled(came(0, 1_011), "w")
    assert ledger.balance_msat(CUSTOMER) == 1_000
    owe(ledger, key_of(2), 2_011)
    assert (ledger.owed_msat(CUSTOMER), ledger.is_covered(CUSTOMER)) == (2_011, False)
    assert ledger.in_debt(CUSTOMER, 100)
    other = key_of(3)
    ledger.owe(Due(other, BOB, 1_011, 100))
    ledger.quoted(quote(1, other))
    ledger.settled(came(1, 1_011), "w")
    ledger.owe(Due(key_of(4), BOB, 101, 100))  # a tenth of what it has paid
    assert ledger.is_covered(BOB) and not ledger.in_debt(BOB, 10**9)
    ledger.owe(Due(key_of(5), BOB, 1, 100))
    assert not ledger.is_covered(BOB) and ledger.in_debt(BOB, 100)


def test_a_payment_for_something_else_only_moves_the_cursor(ledger):
    assert ledger.settled(came(5, 9, 1, cursor=3), "w") == []
    assert ledger.settled(came(6, 9, 1, cursor=2), "w") == []
    assert ledger.cursor("w") == "2"


def test_a_receipt_follows_a_settlement_and_is_published_once(ledger):
    owe(ledger)
    ledger.quoted(quote(0))
    ledger.receipted(HASHES[0], "r1")
    ledger.settled(came(0, 1_000, 50, cursor=1), "w")
    (income,) = ledger.unreceipted()
    assert (income.quote, income.customer, income.amount_msat) == (quote(0), CUSTOMER, 1_000)
    ledger.receipted(HASHES[0], "r1")
    assert ledger.unreceipted() == []


def test_a_due_is_entered_once(ledger):
    due = owe(ledger)
    assert owe(ledger, due_by_s=999) == due
    for change in ({"amount_msat": 2}, {"customer": BOB}):
        with pytest.raises(NotAllowed):
            owe(ledger, **change)
    with pytest.raises(NotFound):
        ledger.due(dataclasses.replace(KEY, chunk=9))


@settings(max_examples=25, deadline=None)
@given(payment_events)
def test_the_stored_payment_is_the_payment_of_the_machine(log):
    ledger = Ledger(":memory:")
    ledger.plan(KEY, 1_000)
    payment = Payment(HASHES[0], "lnbcrt0", 1_000)
    ledger.begin(ALICE, [KEY], payment)
    for event in log:
        try:
            payment = debts.apply(event, payment)
        except NodewireError as error:
            with pytest.raises(type(error)):
                ledger.record(HASHES[0], event)
        else:
            assert ledger.record(HASHES[0], event) == payment
        assert ledger.payment(HASHES[0]) == payment == ledger.debt(KEY).parts[0].payment
        assert (ledger.debt(KEY).state == "paid") == (payment.state == "paid")
    ledger.close()


class TabMachine(RuleBasedStateMachine):
    """A customer's book and a provider's, over a wallet that pays or fails: what one spent is what the other got."""

    def __init__(self):
        super().__init__()
        self.customer, self.provider = Ledger(":memory:"), Ledger(":memory:")
        self.count, self.sent, self.came, self.claimed = 0, {}, [], []

    @rule(job=st.integers(0, 2), amount_msat=st.integers(1, 40))
    def charge(self, job, amount_msat):
        key = Key(f"{job:064x}", ALICE, self.count)
        self.count += 1
        self.provider.owe(Due(key, CUSTOMER, amount_msat, 100))
        self.customer.plan(key, amount_msat)

    @rule(job=st.integers(0, 2), amount_msat=st.integers(1, 40), is_deposit=st.booleans())
    def claim(self, job, amount_msat, is_deposit):
        """A part of a training: it stands until the customer names it."""
        key = Key(f"{job:064x}", ALICE, self.count)
        self.count += 1
        self.claimed.append(key)
        self.provider.owe(Due(key, CUSTOMER, amount_msat, dues.NEVER_S if is_deposit else 100), by_name=True)

    @rule(n=st.integers(0, 30), is_heard=st.booleans())
    def name(self, n, is_heard):
        if not self.claimed:
            return
        key = self.claimed.pop(n % len(self.claimed))
        due = self.provider.due(key)
        self.customer.plan(key, due.amount_msat, by_name=True)
        if self.provider.settle_by_name(key) and not is_heard:  # the answer is lost, and it is named again
            assert self.provider.settle_by_name(key) == []
        if self.provider.due(key).state == "settled":
            self.customer.settle_by_ahead(key)

    @rule(n=st.integers(0, 30), unit=st.sampled_from([1, 50, 1_000]), together=st.booleans())
    def ask(self, n, unit, together):
        others = self.customer.unpaid_to(ALICE)
        owed = self.customer.unpaid()
        if not owed:
            return
        named = owed[n % len(owed)]
        wanted = [named, *(one for one in others if together and one.key != named.key)]
        amount_msat = -(-sum(one.left_msat for one in wanted) // unit) * unit
        preimage = self.count.to_bytes(4, "big") * 8
        self.count += 1
        payment_hash = hashlib.sha256(preimage).hexdigest()
        debt = self.customer.begin(ALICE, [one.key for one in wanted], Payment(payment_hash, "lnbcrt", amount_msat))
        self.provider.quoted(Quote(named.key, payment_hash, "{}", "lnbcrt"))
        if debt.payment_hash == payment_hash:
            self.sent[payment_hash] = preimage.hex(), amount_msat
            self.customer.record(payment_hash, debts.PaymentAttempt("w"))

    @rule(is_paid=st.booleans(), told_twice=st.booleans())
    def end(self, is_paid, told_twice):
        if not self.sent:
            return
        payment_hash, (preimage, amount_msat) = self.sent.popitem()
        if not is_paid:
            self.customer.record(payment_hash, debts.PaymentFailure("no route"))
            return
        self.came.append(amount_msat)
        for _ in range(1 + told_twice):
            self.provider.settled(Receipt("1", payment_hash, preimage, amount_msat, 50), "w")
            self.customer.record(payment_hash, debts.PaymentSettlement(preimage, 1))

    @invariant()
    def both_books_agree(self):
        tab, came_msat = self.customer.tab(ALICE), sum(self.came)
        assert tab.paid_msat == self.provider.paid_msat(CUSTOMER) == came_msat
        assert self.customer.spent().paid_msat + tab.ahead_msat == came_msat
        assert self.provider.earned_msat() + self.provider.balance_msat(CUSTOMER) == came_msat
        owed_msat = self.provider.owed_msat(CUSTOMER) - self.provider.balance_msat(CUSTOMER)
        owed_msat -= sum(self.provider.due(key).amount_msat for key in self.claimed)
        assert tab.owed_msat - tab.ahead_msat == owed_msat
        assert self.customer.spent().fees_msat == len(self.came)


TestTabs = TabMachine.TestCase
TestTabs.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


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
    db.executescript(VERSION_3 + "CREATE TABLE ended (job TEXT PRIMARY KEY) STRICT;")
    db.execute("INSERT INTO ended VALUES (?)", (JOB,))
    row = (JOB, ALICE, CUSTOMER)
    db.execute("INSERT INTO dues VALUES (?, ?, 0, 0, ?, 1000, 100, 'due', NULL, NULL, 0, NULL)", row)
    db.execute("PRAGMA user_version = 2")
    db.commit()
    db.close()
    after = Ledger(path)
    after.interrupted()
    assert after.in_debt(CUSTOMER, 100)
    assert (after.has_ended(JOB), after.count_owed(JOB)) == (True, None)
    after.end_job("11" * 32, 2)
    assert after.count_owed("11" * 32) == 2
    after.close()


def test_a_ledger_of_version_6_settles_its_deposits_by_name(tmp_path):
    before = Ledger(tmp_path / "ledger.db")
    deposit = Key("77" * 32, ALICE, 0)
    owe(before, deposit, 6, due_by_s=dues.NEVER_S)
    owe(before, KEY)
    before._db.execute("DROP TABLE by_name")
    before._db.execute("PRAGMA user_version = 6")
    before.close()
    after = Ledger(tmp_path / "ledger.db")
    assert (after.is_by_name(deposit), after.is_by_name(KEY)) == (True, False)
    after.close()


# Sums beside the tabs.


def steps_of(ledger, look):
    """How much SQLite does for a look, in its own instructions."""
    counted = []
    ledger._db.set_progress_handler(lambda: counted.append(1) and None, 1)
    look()
    ledger._db.set_progress_handler(None, 0)
    return len(counted)


def test_a_look_at_a_tab_takes_no_longer_the_more_chunks_stand_on_it():
    ledger = Ledger(":memory:", CreditTerms(10**6, 10**6))
    looks = [lambda: ledger.is_due(ALICE, 0, running=True), lambda: ledger.is_covered(CUSTOMER)]
    taken = []
    for chunk in range(300):
        ledger.plan(Key(JOB, ALICE, chunk), 5)
        ledger.owe(Due(Key(JOB, ALICE, chunk), CUSTOMER, 5, 100))
        if chunk in (10, 299):
            taken.append([steps_of(ledger, look) for look in looks])
    # An index may have grown by a level; a sum over the chunks would take thirty times as many.
    assert all(later <= 2 * early for early, later in zip(*taken, strict=True))
    assert ledger.tab(ALICE).owed_msat == ledger.tab_msat(CUSTOMER) == 1_500


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from([ALICE, BOB]), st.integers(0, 3)), max_size=30))
def test_the_sums_beside_the_tabs_are_those_of_the_rows(steps):
    ledger = Ledger(":memory:")
    for n, (what, payee, chunk) in enumerate(steps):
        key, number = Key(JOB, payee, chunk), n % len(HASHES)
        try:
            if what < 2:
                ledger.plan(key, 10 * (chunk + 1))
                ledger.owe(Due(key, CUSTOMER, 10 * (chunk + 1), dues.NEVER_S if what else 100))
            elif what == 2:
                ledger.begin(payee, [key], Payment(HASHES[number], f"lnbcrt{n}", 10 * (chunk + 1) + 7 * (n % 4)))
                ledger.quoted(Quote(key, HASHES[number], "{}", f"lnbcrt{n}"))
            elif what == 3:
                ledger.forgive(key)
                ledger.forgo(key)
            else:
                number = chunk + 4 * (what % 2)
                ledger.record(HASHES[number], debts.PaymentAttempt("w"))
                if what == 7:
                    ledger.record(HASHES[number], debts.PaymentFailure("no route"))
                    continue
                ledger.record(HASHES[number], debts.PaymentSettlement(PREIMAGES[number], 1))
                amount_msat = ledger.payment(HASHES[number]).amount_msat
                ledger.settled(Receipt(str(n), HASHES[number], PREIMAGES[number], amount_msat, 5), "w")
        except (NotAllowed, NotFound):
            continue
        for one in (ALICE, BOB):
            tab, unpaid = ledger.tab(one), ledger.unpaid_to(one)
            assert tab.owed_msat == sum(debt.left_msat for debt in unpaid)
            paid = ledger._db.execute(
                "SELECT amount_msat, ahead_msat FROM payments WHERE payee = ? AND state = 'paid'", (one,)
            )
            sums = [sum(column) for column in zip(*paid, strict=True)] or [0, 0]
            assert [tab.paid_msat, tab.ahead_msat] == sums
        owed = ledger._db.execute("SELECT amount_msat FROM dues WHERE state = 'due' AND due_by_s = 100").fetchall()
        assert ledger.tab_msat(CUSTOMER) == sum(amount_msat for (amount_msat,) in owed)
        (came_msat,) = ledger._db.execute("SELECT coalesce(sum(amount_msat), 0) FROM quotes").fetchone()
        assert ledger.paid_msat(CUSTOMER) == came_msat


def test_a_payment_that_was_under_way_for_a_forgiven_debt_is_ahead_when_it_settles(ledger):
    ledger.plan(KEY, 40)
    attempted(ledger, 0, KEY, amount_msat=61)
    ledger.forgive(KEY)
    settle_payment(ledger, 0)
    assert (ledger.tab(ALICE).owed_msat, ledger.tab(ALICE).ahead_msat) == (0, 61)


def test_what_was_paid_of_a_forgiven_debt_is_ahead_again():
    ledger = Ledger(":memory:")
    ledger.plan(KEY, 10)
    ledger.begin(ALICE, [KEY], Payment(HASHES[0], "lnbcrt0", 15))
    ledger.record(HASHES[0], debts.PaymentAttempt("w"))
    ledger.record(HASHES[0], debts.PaymentSettlement(PREIMAGES[0], 0))
    part, other = Key(JOB, ALICE, 1), Key(JOB, ALICE, 2)
    ledger.plan(part, 20)
    ledger.plan(other, 3)
    assert (ledger.tab(ALICE).owed_msat, ledger.tab(ALICE).ahead_msat) == (18, 0)
    ledger.forgive(part)
    assert (ledger.tab(ALICE).owed_msat, ledger.tab(ALICE).ahead_msat) == (0, 2)
    assert ledger.debt(other).state == "paid"


def test_a_ledger_of_version_5_is_summed_up(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    for chunk in range(3):
        ledger.plan(Key(JOB, ALICE, chunk), 10)
        ledger.owe(Due(Key(JOB, ALICE, chunk), CUSTOMER, 10, 100 if chunk else dues.NEVER_S))
    ledger.begin(ALICE, [KEY], Payment(HASHES[0], "lnbcrt0", 15))
    ledger.quoted(Quote(KEY, HASHES[0], "{}", "lnbcrt0"))
    ledger.record(HASHES[0], debts.PaymentAttempt("w"))
    ledger.record(HASHES[0], debts.PaymentSettlement(PREIMAGES[0], 0))
    ledger.settled(Receipt("1", HASHES[0], PREIMAGES[0], 15, 5), "w")
    before = ledger.tab(ALICE), ledger.tab_msat(CUSTOMER), ledger.paid_msat(CUSTOMER)
    names = ledger._db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in names:
        ledger._db.execute(f"DROP TRIGGER {name}")
    ledger._db.execute("DROP TABLE tabs")
    ledger._db.execute("DROP TABLE accounts")
    ledger._db.execute("PRAGMA user_version = 5")
    ledger.close()
    again = Ledger(tmp_path / "ledger.db")
    assert (again.tab(ALICE), again.tab_msat(CUSTOMER), again.paid_msat(CUSTOMER)) == before
    again.plan(Key(JOB, ALICE, 9), 10)
    assert again.tab(ALICE).owed_msat == before[0].owed_msat + 10
    again.close()


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


def test_a_file_that_another_process_holds_costs_no_later_transaction_its_place_on_disk(tmp_path):
    with closing(Ledger(tmp_path / "l.db")) as one, closing(Ledger(tmp_path / "l.db")) as other:
        one._db.execute("PRAGMA busy_timeout = 1")
        other._db.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            one.plan(Key("11" * 32, "22" * 32, 0), 1)
        other._db.execute("ROLLBACK")
        assert one._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
