"""The book's own rules, step by step. The treasurer asks before most of them, and a journal is believed by nobody."""

from dataclasses import replace

import pytest

from nodewire.errors import BadInput, NotAllowed, PaymentFailed
from simnet.holder_book import MAX_ZAPS, HolderBook, Share, apply, settled
from simnet.steps import (
    FEES,
    BondLock,
    BondRelease,
    ClaimLapse,
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
    return ZapQuote(f"zap {number}", "", "", JOB, sender, chunk, amount_msat, fee_msat, 10**6)


def shared(book, number, at_s=10, **fields):
    """The book after a share has been zapped."""
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


def claim(amount_msat, ref="case", payee=VERIFIER, invoice="invoice"):
    return PayoutClaim(ref, payee, invoice, "", amount_msat)


def test_a_share_counts_from_the_end_of_the_second_in_which_it_came():
    share = Share(300, ((9, 100, 10), (10, 200, 20)))
    assert [share.before_ms(at_ms) for at_ms in (9_999, 10_000, 10_999, 11_000)] == [0, 100, 100, 300]
    assert share.before_ms(11_000, less_fees=True) == 270


def test_zaps_for_one_chunk_cover_up_to_a_number_of_them():
    book = book_of()
    for number in range(MAX_ZAPS + 1):
        book = shared(book, number)
    (share,) = book.shares.values()
    assert len(share.came) == MAX_ZAPS
    assert share.amount_msat == (MAX_ZAPS + 1) * 1_000


def test_a_share_is_received_once_and_no_fee_is_above_it():
    book = shared(book_of(), 1)
    assert settled("zap 1", "anybody", 11, book) is book
    assert (book.pots[JOB].left_msat, book.fees_msat) == (900, 100)
    for fee_msat in (-1, 1_001):
        with pytest.raises(BadInput, match="fee_msat"):
            apply(quote(2, fee_msat=fee_msat), book)


def test_units_that_were_computed_are_those_funded_before_the_draw():
    book = shared(shared(book_of(), 1, at_s=10), 2, at_s=60, chunk=1)
    units = [book.computed_units(JOB, CUSTOMER, 1, 1_000, at_ms) for at_ms in (DRAWN_MS, 61_000)]
    assert units == [1, 2]


def test_chunks_that_follow_are_those_with_the_whole_share_before_the_draw():
    book = shared(shared(shared(book_of(), 1, chunk=1), 2, chunk=2), 3, chunk=3, amount_msat=999, fee_msat=0)
    assert book.following(JOB, CUSTOMER, 0, 1_000, DRAWN_MS) == 2
    late = shared(shared(book_of(), 1, chunk=1), 2, at_s=60, chunk=2)
    assert late.following(JOB, CUSTOMER, 0, 1_000, DRAWN_MS) == 1


def test_what_a_share_covers_is_less_its_fee_and_what_was_drawn():
    book = book_of(verdict(), of=shared(book_of(), 1))
    assert book.covered_msat(verdict()) == 1_800  # 900 by a rate of a half
    book = apply(claim(PRICE_MSAT), replace(book, pool_msat=100))
    assert book.covered_msat(verdict()) == 800


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
    assert book_of(locked(), fail, BondRelease("bond", 10**5)).pool_msat == 9_000
    assert book_of(locked(), UnbondRequest("bond", 10, 5), BondRelease("bond", 15)).pool_msat == 0


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
    assert (book.pool_msat, book.deposit("bond").bond.remainder_msat) == (3_000, 6_000)
    assert book.owed_msat() == 10_000


@pytest.fixture
def covered():
    """A case that gives VERIFIER a chunk's price, and OTHER as much; 1,800 msat are covered, 900 of them in the pot."""
    return replace(book_of(verdict(agreed=[VERIFIER, OTHER]), of=shared(book_of(), 1)), pool_msat=150)


def test_a_claim_is_for_what_is_due_and_has_an_invoice_of_its_own(covered):
    for amount_msat in (PRICE_MSAT - 1, PRICE_MSAT + 1):
        with pytest.raises(NotAllowed, match="are due"):
            apply(claim(amount_msat), covered)
    with pytest.raises(BadInput, match="above zero"):
        apply(claim(0), covered)
    book = apply(claim(PRICE_MSAT), covered)
    assert apply(claim(PRICE_MSAT), book) is book
    with pytest.raises(NotAllowed, match="another invoice"):
        apply(claim(PRICE_MSAT, invoice="second"), book)
    with pytest.raises(NotAllowed, match="another claim"):
        apply(claim(800, payee=OTHER), book)


def test_the_treasury_gives_the_pot_first_and_no_more_than_it_holds(covered):
    book = apply(claim(PRICE_MSAT), covered)
    assert (book.pots[JOB].left_msat, book.pool_msat) == (0, 50)
    with pytest.raises(PaymentFailed):
        apply(claim(800, payee=OTHER, invoice="second"), book)


def test_a_claim_that_lapsed_gives_back_what_it_bound(covered):
    bound = apply(claim(PRICE_MSAT), covered)
    other_invoice = ClaimLapse("case", VERIFIER, "another invoice")
    assert apply(other_invoice, bound) is bound
    lapse = ClaimLapse("case", VERIFIER, "invoice")
    book = apply(lapse, bound)
    assert (book.pots[JOB].left_msat, book.pool_msat) == (900, 150)
    assert book.covered_msat(verdict()) == 1_800
    assert apply(lapse, book) is book
    closed = apply(lapse, apply(RequestClosure(JOB, 99), bound))
    assert (closed.pots[JOB].left_msat, closed.pool_msat) == (0, 1_050)  # nobody closes the pot once more


def test_a_claim_is_paid_by_the_holder_alone_and_lapses_no_more(covered):
    bound = apply(claim(PRICE_MSAT), covered)
    assert settled("invoice", "somebody else", 70, bound) is bound
    paid = settled("invoice", "holder", 70, bound)
    assert bound.owed_msat() - paid.owed_msat() == PRICE_MSAT
    assert settled("invoice", "holder", 71, paid) is paid
    with pytest.raises(NotAllowed, match="paid"):
        apply(ClaimLapse("case", VERIFIER, "invoice"), paid)


def test_a_pot_closes_once_and_opens_with_the_next_share(covered):
    book = apply(RequestClosure(JOB, 99), covered)
    assert (book.pots[JOB].left_msat, book.pool_msat) == (0, 1_050)
    assert apply(RequestClosure(JOB, 100), book) is book
    again = shared(book, 2)
    assert (again.pots[JOB].left_msat, again.pots[JOB].is_closed) == (900, False)


def test_fees_are_claimed_up_to_what_came_and_a_lapsed_claim_gives_them_back():
    book = shared(book_of(), 1)
    too_much = PayoutClaim(f"{FEES}/a", "oracle", "a", "", 101)
    with pytest.raises(PaymentFailed):
        apply(too_much, book)
    taken = apply(PayoutClaim(f"{FEES}/b", "oracle", "b", "", 60), book)
    with pytest.raises(PaymentFailed):
        apply(PayoutClaim(f"{FEES}/c", "other oracle", "c", "", 41), taken)
    back = apply(ClaimLapse(f"{FEES}/b", "oracle", "b"), taken)
    assert back.taken["oracle"] == 0
    assert book.owed_msat() == taken.owed_msat() == back.owed_msat() == 1_000
