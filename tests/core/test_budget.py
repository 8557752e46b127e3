"""What an origin may use of something shared: refilled by a clock, in a bounded table."""

from nodewire.core.budget import Budget
from nodewire.net.connection_limits import Strangers


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def test_an_origin_has_its_burst_at_once_and_its_rate_from_then_on():
    clock = Clock()
    budget = Budget(2, 3, clock)
    assert [budget.spend("a") for _ in range(4)] == [True, True, True, False]
    clock.now_s = 1.0
    assert [budget.spend("a") for _ in range(3)] == [True, True, False]
    clock.now_s = 100.0
    assert budget.available("a") == 3


def test_one_origin_takes_nothing_of_another():
    budget = Budget(1, 1, Clock())
    assert budget.spend("a")
    assert not budget.spend("a")
    assert budget.spend("b")


def test_a_debt_is_paid_by_waiting():
    clock = Clock()
    budget = Budget(10, 10, clock)
    assert budget.charge("a", 5) == 0
    assert budget.charge("a", 25) == 2.0
    assert not budget.spend("a")
    clock.now_s = 2.1
    assert budget.spend("a")


def test_the_table_is_bounded():
    budget = Budget(1, 1, Clock(), max_origins=10)
    for number in range(1_000):
        assert budget.spend(str(number))
    assert len(budget) == 10


def test_where_age_is_a_merit_the_newest_of_the_most_crowded_address_makes_room():
    slots = Strangers[str](3, keeps_old=True)
    assert [slots.enter(name, "10.0.0.1") for name in "abc"] == [None] * 3
    assert slots.enter("d", "10.0.0.1") == "d"
    assert slots.enter("e", "10.0.0.2") == "c"
    assert "a" in slots
    assert "e" in slots
    assert "c" not in slots


def test_addresses_of_one_network_of_ipv6_are_one_origin():
    slots = Strangers[int](2, keeps_old=True)
    assert [slots.enter(n, f"2001:db8::{n}") for n in (1, 2, 3)] == [None, None, 3]
    assert slots.enter(4, "2001:db8:0:1::1") == 2
