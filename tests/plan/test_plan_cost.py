"""The roofline, and what fitting it to measurements does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadInput
from nodewire.plan.cost import Rates, Work, fit

RATES = Rates(flops_per_s=1e9, bytes_per_s=1e8, call_us=10.0)


def test_a_call_takes_as_long_as_its_slower_half():
    assert RATES.predicted_us(Work(flops=10**6, bytes=0)) == pytest.approx(1_010)
    assert RATES.predicted_us(Work(flops=10**6, bytes=10**6)) == pytest.approx(10_010)
    assert RATES.predicted_us(Work(0, 0)) == 10.0


@given(st.floats(0.1, 50), st.lists(st.integers(10**4, 10**9), min_size=1, max_size=20))
def test_a_node_that_is_so_many_times_slower_everywhere_is_predicted_exactly(slower, flops):
    measured = [(Work(n, 0), 10.0 + slower * n / 1e3) for n in flops]
    found = fit(RATES, measured)
    assert found.rates.slower == pytest.approx(slower, rel=1e-6)
    assert found.within_most == pytest.approx(1, rel=1e-6)


def test_one_measurement_that_went_wrong_moves_nothing():
    measured = [(Work(n * 10**6, 0), 10.0 + 2_000.0 * n) for n in range(1, 10)]
    spoilt = [*measured, (Work(10**6, 0), 10**6)]
    assert fit(RATES, spoilt).rates.slower == pytest.approx(fit(RATES, measured).rates.slower, rel=1e-6)
    assert fit(RATES, spoilt).within_half == pytest.approx(1, rel=1e-6)
    assert fit(RATES, spoilt).within_most > 100


def test_what_calls_cost_beside_their_work_is_fitted_too():
    """The pipe to a worker takes many times what the smallest kernel does; tiny tasks show it, and skew nothing."""
    sizes = [10**5, 10**5, 10**5, 10**6, 10**7, 10**8]
    found = fit(RATES, [(Work(n, 0), 900.0 + 3 * n / 1e3) for n in sizes])
    assert found.within_most < 1.2
    assert found.count == len(sizes)
    assert found.rates.predicted_us(Work(10**9, 0)) == pytest.approx(3e6, rel=0.2)


def test_work_that_takes_less_than_a_call_of_nothing_says_nothing_of_speed():
    assert not RATES.is_told_by(Work(0, 10**9))
    assert not RATES.is_told_by(Work(9_999, 0))
    assert RATES.is_told_by(Work(10_001, 0))


@pytest.mark.parametrize("measured", [[], [(Work(0, 0), 12.0)], [(Work(1, 1), 0.0)], [(Work(1, 1), -1.0)]])
def test_without_a_measurement_nothing_is_fitted(measured):
    with pytest.raises(BadInput, match="measured"):
        fit(RATES, measured)


@pytest.mark.parametrize("rates", [(0, 1, 0), (1, 0, 0), (1, 1, -1), (float("nan"), 1, 0)])
def test_rates_are_above_0(rates):
    with pytest.raises(BadInput, match="rates"):
        Rates(*rates)
