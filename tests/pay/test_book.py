"""The book's own rules, step by step. The treasurer asks before most of them, and a journal is believed by nobody."""

from dataclasses import replace

import pytest

from nodewire.errors import BadInput, NotAllowed, NotFound, PaymentFailed
from simnet.holder_book import HolderBook, apply, settled
from simnet.steps import (
    FEES,
    BondLock,
    BondRelease,
    ClaimLapse,
    DueCredit,
    HolderSeat,
    PayoutClaim,
    RequestClosure,
    UnbondRequest,
    VerdictStep,
    ZapQuote,
)

JOB, CUSTOMER, VERIFIER, OTHER = "job", "customer", "verifier", "other"
PRICE_MSAT, DRAWN_MS = 1_000, 50_000


def book_of(*steps, of=None):
    book = of or apply(HolderSeat("holder"), HolderBook())
    for step in steps:
        book = apply(step, book)
    return book


def quote(number, amount_msat=1_000, fee_msat=100, chunk=0, sender=CUSTOMER):
    return ZapQuote(f"zap {number}", "", "", sender, amount_msat, 10**6, JOB, chunk, fee_msat)


def shared(book, number, at_s=10, **fields):
    """The book after a share has been zapped, as it was in earlier logs."""
    return settled(f"zap {number}", "anybody", at_s, apply(quote(number, **fields), book))


def verdict(case="case", **changes):
    """A pass by VERIFIER on the only task of a job, of which one chunk in two is drawn."""
    fields = {
        "digest": f"digest of {case}",
        "request": JOB,
        "outcome": "pass",
        "customer": CUSTOMER,
        "task": "stage",
        "chunk": 0,
        "price_msat": PRICE_MSAT,
        "chunk_msat": PRICE_MSAT,
        "rate_ppm": 500_000,
        "drawn_at_ms": DRAWN_MS,
        "agreed": [VERIFIER],
        "culprit": "",
        "slashes": False,
        "bond": "",
        "payouts": {},
        "refused": "",
        "at_s": 60,
        "delay_s": 10,
    }
    return VerdictStep(case=case, **{**fields, **changes})


def locked(bond="bond", provider="provider", amount_msat=10_000):
    return BondLock(bond, "account", provider, amount_msat, 1_000)


def with_pool(book, msat):
    return replace(book, treasury=book.treasury.with_pool(msat))


def claim(amount_msat, payee=VERIFIER, invoice="invoice", ref=""):
    return PayoutClaim(payee, invoice, "", amount_msat, ref)


def test_a_lump_is_received_once_and_no_fee_is_above_it():
    book = shared(book_of(), 1)
    assert settled("zap 1", "anybody", 11, book) is book
    assert (book.treasury.pots[JOB].left_msat, book.treasury.fees_msat, book.ahead_msat(CUSTOMER)) == (900, 100, 0)
    for fee_msat in (-1, 1_001):
        with pytest.raises(BadInput, match="fee_msat"):
            apply(quote(2, fee_msat=fee_msat), book)
    lump = ZapQuote("lump", "", "", CUSTOMER, 500, 10**6)
    paid = settled("lump", "anybody", 12, apply(lump, book))
    assert (paid.ahead_msat(CUSTOMER), paid.owed_msat()) == (500, 1_500)


def test_a_convicted_key_and_one_with_a_bond_get_no_other():
    book = book_of(locked())
    assert apply(locked(), book) is book
    with pytest.raises(NotAllowed, match="another request"):
        apply(locked(amount_msat=1), book)
    with pytest.raises(NotAllowed, match="one at a time"):
        apply(locked("second"), book)
    fail = verdict(outcome="fail", culprit="provider", slashes=True, bond="bond", agreed=[])
    slashed = apply(fail, book)
    for convicted in (slashed, apply(BondRelease("bond", 10**5), slashed)):
        with pytest.raises(NotAllowed, match="no new bond"):
            apply(locked("second"), convicted)
    released = book_of(UnbondRequest("bond", 10, 5), BondRelease("bond", 15), locked("second"), of=book)
    assert released.find_deposit("provider").bond.id == "second"


def test_of_a_slashed_bond_the_rest_goes_to_the_pool_and_of_a_released_one_back():
    fail = verdict(outcome="fail", culprit="provider", slashes=True, bond="bond", payouts={CUSTOMER: 1_000}, agreed=[])
    assert book_of(locked(), fail, BondRelease("bond", 10**5)).treasury.pool_msat == 9_000
    assert book_of(locked(), UnbondRequest("bond", 10, 5), BondRelease("bond", 15)).treasury.pool_msat == 0


def test_one_verdict_on_a_case_stands_and_pays_out_of_a_bond():
    book = book_of(verdict())
    assert apply(verdict(), book) is book
    with pytest.raises(NotAllowed, match="another verdict"):
        apply(verdict(digest="other"), book)
    for fields in ({"payouts": {CUSTOMER: 1}}, {"forfeit_msat": 1}):
        with pytest.raises(BadInput, match="no bond"):
            apply(verdict("unbacked", **fields), book)


def test_what_is_forfeited_goes_to_the_pool_at_once():
    withheld = verdict(outcome="withheld", bond="bond", payouts={CUSTOMER: 1_000}, forfeit_msat=3_000, agreed=[])
    book = book_of(locked(), withheld)
    assert (book.treasury.pool_msat, book.deposit("bond").bond.remainder_msat) == (3_000, 6_000)
    assert book.owed_msat() == 10_000


@pytest.fixture
def covered():
    """A case that gives VERIFIER a chunk's price, and OTHER as much; 1,800 msat are covered, 900 of them in the pot."""
    return with_pool(book_of(verdict(agreed=[VERIFIER, OTHER]), of=shared(book_of(), 1)), 150)


def test_a_bond_gives_a_payee_what_the_verdict_says_and_once():
    fail = verdict(outcome="fail", culprit="provider", slashes=True, bond="bond", payouts={CUSTOMER: 1_000}, agreed=[])
    book = book_of(locked(), fail)
    assert book.case_due_msat("case", CUSTOMER) == 1_000
    given = apply(DueCredit("case", CUSTOMER, 1_000), book)
    assert (given.case_due_msat("case", CUSTOMER), given.treasury.due_msat(CUSTOMER)) == (0, 1_000)
    assert book.owed_msat() == given.owed_msat() == 10_000
    with pytest.raises(NotAllowed):
        apply(DueCredit("case", CUSTOMER, 1_000), given)
    with pytest.raises(NotAllowed):
        book.case_due_msat("case", VERIFIER)
    with pytest.raises(NotFound):
        apply(DueCredit("another", CUSTOMER, 1_000), book)


def test_a_payout_is_paid_by_the_holder_alone_and_lapses_no_more(covered):
    bound = book_of(DueCredit("case", VERIFIER, PRICE_MSAT), claim(PRICE_MSAT), of=covered)
    assert settled("invoice", "somebody else", 70, bound) is bound
    paid = settled("invoice", "holder", 70, bound)
    assert bound.owed_msat() - paid.owed_msat() == PRICE_MSAT
    assert settled("invoice", "holder", 71, paid) is paid
    assert apply(ClaimLapse("invoice"), paid) is paid


def test_a_claim_of_an_earlier_log_credits_what_it_binds_and_once(covered):
    old = claim(PRICE_MSAT, ref="case")
    bound = apply(old, covered)
    assert apply(old, bound) is bound
    assert (bound.case_due_msat("case", VERIFIER), bound.treasury.due_msat(VERIFIER)) == (0, 0)
    fee = claim(60, "oracle", "fee", f"{FEES}/fee")
    assert apply(fee, bound).treasury.taken["oracle"] == 60
    with pytest.raises(PaymentFailed):
        apply(claim(101, "oracle", "fee", f"{FEES}/fee"), bound)
    assert bound.owed_msat() == apply(fee, bound).owed_msat() == covered.owed_msat()


def test_a_pot_closes_once_and_opens_with_the_next_share(covered):
    book = apply(RequestClosure(JOB, 99), covered)
    assert (book.treasury.pots[JOB].left_msat, book.treasury.pool_msat) == (0, 1_050)
    assert apply(RequestClosure(JOB, 100), book) is book
    again = shared(book, 2)
    assert (again.treasury.pots[JOB].left_msat, again.treasury.pots[JOB].is_closed) == (900, False)
