"""Terms of a bond that cannot be, and what a closing pays by them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tests.pay.bond_market as bm
from nodewire.errors import BadInput, BadQuorum
from nodewire.pay.bond import bonds
from nodewire.pay.bond.bonds import Payout, Refund, Slash
from nodewire.pay.bond.quorum.terms import POOL, BondTerms, Evidence, Payment, check_terms, closing, judged, terms_of
from tests.pay.bond.quorum.market import COMMITTEE, convicted, request, verdict_of

UNTIL_S, SAT = 1_900_000_000, 10_000
TERMS = terms_of(COMMITTEE, bm.PROVIDER.public, UNTIL_S, "first")
BOND = bonds.lock(bonds.Lock(TERMS.id, TERMS.provider, SAT * 1_000, UNTIL_S))


@pytest.mark.parametrize(
    ("until_s", "key", "field"),
    [
        (UNTIL_S, "", "key"),
        (UNTIL_S, "k" * 65, "key"),
        (499_999_999, "k", "until_s"),
        (2**31 - 1, "k", "until_s"),
    ],
)
def test_an_end_or_a_key_that_cannot_be_is_refused_by_its_field(until_s, key, field):
    with pytest.raises(BadInput) as refused:
        terms_of(COMMITTEE, bm.PROVIDER.public, until_s, key)
    assert refused.value.field == field


def test_the_same_key_names_the_same_bond_and_another_names_another():
    assert terms_of(COMMITTEE, bm.PROVIDER.public, UNTIL_S, "first") == TERMS
    assert terms_of(COMMITTEE, bm.PROVIDER.public, UNTIL_S, "second").id != TERMS.id


@pytest.mark.parametrize(
    "change",
    [
        {"refund_at_s": UNTIL_S},
        {"quorum": 5},
        {"oracles": [TERMS.oracles[0]] * 4},
        {"oracles": []},
        {"provider": "ab"},
        {"v": 2},
    ],
    ids=str,
)
def test_terms_that_contradict_themselves_are_malformed(change):
    document = TERMS.model_dump(mode="json")
    assert BondTerms.from_document(document) == TERMS
    with pytest.raises(BadInput):
        BondTerms.from_document({**document, **change})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"committee": "00" * 32}, "terms"),
        ({"quorum": 2}, "terms"),
        ({"oracles": TERMS.oracles[::-1]}, "terms"),
        ({"refund_at_s": TERMS.refund_at_s - 1}, "terms.refund_at_s"),
    ],
    ids=["committee", "quorum", "oracles", "refund_at_s"],
)
def test_terms_that_are_not_locked_by_the_committee_for_long_enough_are_refused(change, field):
    check_terms(TERMS, COMMITTEE)
    with pytest.raises(BadQuorum) as refused:
        check_terms(TERMS.model_copy(update=change), COMMITTEE)
    assert refused.value.field == field


# Verdicts

JOB = request(price_msat=100_000)


def judge(said, bond=BOND):
    return judged(Evidence(bm.certificate(said), JOB), bond, COMMITTEE, 7)


def test_a_verdict_slashes_the_culprit_burns_the_accomplice_and_does_nothing_to_others():
    said = convicted(JOB, culprit=bm.PROVIDER, accomplices=(bm.VERIFIERS[2].public,))
    slash = judge(said)
    assert isinstance(slash, Slash) and {one.payee for one in slash.payouts} >= {bm.CUSTOMER.public}
    assert judge(said, replace(BOND, provider=bm.VERIFIERS[2].public)) == replace(slash, payouts=())
    assert judge(said, replace(BOND, provider=bm.STRANGER.public)) is None
    assert judge(verdict_of(JOB)) is None


def test_a_verdict_by_too_few_oracles_or_about_another_job_is_refused():
    said = convicted(JOB, culprit=bm.PROVIDER)
    with pytest.raises(BadQuorum):
        judged(Evidence(bm.certificate(said, bm.ORACLES[:2]), JOB), BOND, COMMITTEE, 7)
    with pytest.raises(BadInput) as refused:
        judged(Evidence(bm.certificate(said), request(salt="other")), BOND, COMMITTEE, 7)
    assert refused.value.field == "request"


def test_a_chunk_that_was_withheld_refunds_the_customer_alone():
    refund = judge(verdict_of(JOB, outcome="withheld", verifiers=()))
    assert isinstance(refund, Refund)
    assert [(one.payee, one.amount_msat) for one in refund.payouts] == [(bm.CUSTOMER.public, 100_000)]
    assert 0 < refund.forfeit_msat <= BOND.remainder_msat - 100_000


# Closings


def after(*events):
    bond = BOND
    for event in events:
        bond = bonds.apply(event, bond)
    return bond


def paid(case, *payouts):
    return tuple(Payout(case, payee, msat) for payee, msat in payouts)


@pytest.mark.parametrize(
    ("events", "payments"),
    [
        ((), [(BOND.provider, 9_900)]),
        ((Refund("c1", paid("c1", ("a", 2_000_000))),), [("a", 2_000), (BOND.provider, 7_900)]),
        (
            (Refund("c1", paid("c1", ("a", 1_000_000)), 3_000_000),),
            [("a", 1_000), (BOND.provider, 5_900), (POOL, 3_000)],
        ),
        ((Refund("c1", paid("c1", ("a", 1_000_000)), 300_000),), [("a", 1_000), (BOND.provider, 8_900)]),
        ((Slash("c1", paid("c1", ("a", 2_000_000)), 1, 1),), [("a", 2_000), (POOL, 7_900)]),
        ((Slash("c1", paid("c1", ("a", 329_999)), 1, 1),), [(POOL, 9_900)]),
        (
            (Slash("c1", paid("c1", ("a", 200_000)), 1, 1), Slash("c2", paid("c2", ("a", 200_000)), 1, 1)),
            [("a", 400), (POOL, 9_500)],
        ),
    ],
    ids=["release", "refund", "forfeit", "small forfeit", "slash", "dust", "twice"],
)
def test_a_closing_pays_payees_provider_and_pool_all_that_the_fee_leaves(events, payments):
    found = closing(after(*events), 100, 330)
    assert [(one.payee, one.amount_sat) for one in found] == payments
    assert sum(one.amount_sat for one in found) + 100 == SAT


def test_a_fee_that_is_all_of_it_pays_nobody_and_one_that_leaves_dust_is_refused():
    assert closing(BOND, SAT, 330) == []
    assert closing(BOND, SAT - 330, 330) == [Payment(BOND.provider, 330)]
    for fee_sat in (SAT - 1, SAT - 329, SAT + 1):
        with pytest.raises(BadInput) as refused:
            closing(BOND, fee_sat, 330)
        assert refused.value.field == "fee_sat"
