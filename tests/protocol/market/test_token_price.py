"""Prices of a million tokens, as the wire can say them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadInput
from nodewire.protocol.market.token_price import chunk_price_msat, per_million_msat


@given(price_msat=st.integers(0, 10**9), chunk=st.integers(1, 4_096))
def test_what_a_chunk_costs_comes_back_exactly_where_a_million_are_whole_msat(price_msat, chunk):
    whole = per_million_msat(price_msat, chunk)
    assert whole * chunk == price_msat * 10**6
    if whole.denominator == 1:
        assert chunk_price_msat(int(whole), chunk) == price_msat


@given(per_million=st.integers(0, 10**12), chunk=st.integers(1, 4_096))
def test_nothing_is_rounded(per_million, chunk):
    if per_million * chunk % 10**6:
        with pytest.raises(BadInput) as refused:
            chunk_price_msat(per_million, chunk)
        assert refused.value.field == "price_per_million"
    else:
        assert chunk_price_msat(per_million, chunk) * 10**6 == per_million * chunk


def test_a_price_between_two_steps_is_refused_with_both():
    with pytest.raises(
        BadInput, match=r"12 sat is 0.768 msat a chunk of 64 .* nearest prices are 0 sat and 15.625 sat"
    ):
        chunk_price_msat(12_000, 64)


def test_the_market_price_of_november_2026_is_not_to_be_said_by_four_providers():
    """0.28 $ a million tokens at 100,000 $ a bitcoin are 280 sat: 17.92 msat a chunk, 4.48 for each of four."""
    for providers, exact_msat in ((1, 17.92), (4, 4.48)):
        each = 280_000 // providers
        assert each * 64 / 10**6 == exact_msat
        with pytest.raises(BadInput):
            chunk_price_msat(each, 64)
