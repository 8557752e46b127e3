"""Amounts of proofs that are exact after a mint's fee."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.nostr.nips import nip61
from nodewire.pay.ecash.proofs import MAX_PROOFS, MOST_SAT, exact_amounts, fee_sat


@given(st.integers(1, 10_000_000), st.integers(0, 5_000))
def test_proofs_come_to_just_the_amount_after_fees(amount_sat, fee_ppk):
    found = exact_amounts(amount_sat, fee_ppk)
    assert sum(found) - fee_sat(len(found), fee_ppk) == amount_sat
    assert len(found) <= MAX_PROOFS and all(one & (one - 1) == 0 for one in found)


@given(st.integers(1, 10_000_000), st.sampled_from([0, 1, 100, 999, 1_000]))
def test_a_nutzap_has_few_enough_of_them(amount_sat, fee_ppk):
    assert 0 < len(exact_amounts(amount_sat, fee_ppk, nip61.MAX_PROOFS)) <= nip61.MAX_PROOFS


@pytest.mark.parametrize(("amount_sat", "fee_ppk", "most"), [(2**40 - 1, 0, 32), (1, 10**18, 256), (MOST_SAT, 1, 256)])
def test_a_sum_that_no_proofs_come_to_has_none(amount_sat, fee_ppk, most):
    assert exact_amounts(amount_sat, fee_ppk, most) == []


def test_a_fee_of_several_satoshis_a_proof_asks_for_the_fewest():
    assert [exact_amounts(1, fee_ppk) for fee_ppk in (0, 1_000, 5_000)] == [[1], [2], [4, 4, 8]]
    assert exact_amounts(1_000, 2_000) == [8, 16, 32, 64, 128, 256, 256, 256]
