"""What no verdict is settled by, and a statement that is not the bond's."""

from __future__ import annotations

import pytest

import tests.pay.bond_market as bm
from nodewire.errors import BadInput
from nodewire.nostr.keys import Keys
from nodewire.pay.bond import settlement
from nodewire.pay.bond.bond_holder import check_statement
from nodewire.protocol.job import request as job
from nodewire.protocol.market import bond as statements

OTHERS, _ = bm.committee("other")
AMOUNT_MSAT = 5_000


def find(said, request=bm.REQUEST, committee=bm.COMMITTEE):
    return settlement.find(said, job.parse(request), committee)


@pytest.mark.parametrize(
    ("said", "request_", "committee", "field"),
    [
        (bm.failed(), bm.request(salt="other"), bm.COMMITTEE, "request"),
        (bm.failed(), bm.REQUEST, OTHERS, "committee"),
        (bm.failed(committee=OTHERS), bm.REQUEST, bm.COMMITTEE, "committee"),
        (bm.failed(task="stage.7"), bm.REQUEST, bm.COMMITTEE, "task"),
        (bm.failed(culprit=bm.STRANGER), bm.REQUEST, bm.COMMITTEE, "task"),
    ],
    ids=["another job", "another holder's", "another committee's", "no such task", "another provider"],
)
def test_a_verdict_that_is_not_about_the_plans_task_is_refused_by_its_field(said, request_, committee, field):
    with pytest.raises(BadInput) as refused:
        find(said, request_, committee)
    assert refused.value.field == field


def test_a_pass_takes_nothing_from_a_bond_and_forfeits_nothing():
    finding = find(bm.verdict_of())
    assert (finding.culprit, finding.slashes) == ("", False)
    assert settlement.payouts(finding, following=3, payable_msat=10**9) == {}
    assert settlement.forfeit_msat(finding, remainder_msat=10**9) == 0


def test_a_bond_that_cannot_pay_all_pays_its_customer_first():
    finding = find(bm.failed())
    assert settlement.payouts(finding, following=0, payable_msat=400) == {bm.CUSTOMER.public: 400}
    assert settlement.payouts(finding, following=0, payable_msat=-1) == {}
    two = settlement.payouts(finding, following=0, payable_msat=2 * bm.PRICE_MSAT + 999)
    assert two == {bm.CUSTOMER.public: bm.PRICE_MSAT, finding.agreed[0]: bm.PRICE_MSAT}


def test_what_is_withheld_forfeits_what_is_left_at_most():
    finding = find(bm.verdict_of(outcome="withheld", verifiers=()))
    whole_msat = settlement.forfeit_msat(finding, remainder_msat=10**9)
    assert whole_msat > bm.PRICE_MSAT
    assert settlement.forfeit_msat(finding, remainder_msat=whole_msat - 1) == whole_msat - 1
    assert settlement.forfeit_msat(finding, remainder_msat=0) == 0


@pytest.mark.parametrize(
    ("holder", "provider", "amount_msat"),
    [
        (bm.STRANGER, bm.PROVIDER.public, AMOUNT_MSAT),
        (bm.HOLDER, bm.OTHER.public, AMOUNT_MSAT),
        (bm.HOLDER, bm.PROVIDER.public, AMOUNT_MSAT - 1),
    ],
    ids=["another holder", "another provider", "too little"],
)
def test_a_statement_of_another_holder_or_provider_or_of_too_little_is_refused(holder, provider, amount_msat):
    def stated(keys: Keys, about: str, msat: int):
        return statements.build(keys, about, msat, expires_at_s=2_000, created_at=1_000)

    check_statement(
        stated(bm.HOLDER, bm.PROVIDER.public, AMOUNT_MSAT), bm.HOLDER.public, bm.PROVIDER.public, AMOUNT_MSAT
    )
    with pytest.raises(BadInput) as refused:
        check_statement(stated(holder, provider, amount_msat), bm.HOLDER.public, bm.PROVIDER.public, AMOUNT_MSAT)
    assert refused.value.field == "statement"
