"""What was found costs what the ad says: never nothing, never more than computing it."""

from hypothesis import given
from hypothesis import strategies as st

from nodewire.protocol.market.cached_price import WHOLE_PPM, due_msat, may_be_due

PRICES, PARTS = st.integers(1, 10**9), st.integers(1, WHOLE_PPM)


@given(PRICES, PARTS, st.integers(1, 40), st.integers(0, 40))
def test_found_units_cost_their_part_and_the_others_the_price(price, ppm, units, cached):
    cached = min(cached, units)
    due = due_msat(price, units, cached, ppm)
    assert 0 < due <= units * price
    assert due_msat(price, units, 0, ppm) == due_msat(price, units, cached, WHOLE_PPM) == units * price
    assert due == sum(due_msat(price, 1, int(n < cached), ppm) for n in range(units))
    assert due_msat(price, 1, 1, ppm) * WHOLE_PPM >= price * ppm > (due_msat(price, 1, 1, ppm) - 1) * WHOLE_PPM
    assert may_be_due(due, price, units, cached)
    assert not may_be_due(units * price + 1, price, units, cached)


@given(PRICES, st.integers(1, 40), st.integers(0, 10**11))
def test_where_nothing_was_found_only_the_price_is_due(price, units, amount):
    assert may_be_due(amount, price, units, 0) == (amount == units * price)


def test_nothing_is_due_of_what_is_free():
    assert due_msat(0, 3, 2, 5) == 0
    assert not may_be_due(0, 0, 3, 2)
